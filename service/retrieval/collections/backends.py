"""Opens a collection's two stores: embedded, or on the servers that the settings name."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pydantic import SecretStr

from service.core.errors import StoreError, StoreLost
from service.core.settings import RetrievalSettings
from service.core.settings.vectors import VectorSettings
from service.retrieval.collections import generations, manifest_elastic
from service.retrieval.collections.generations import stored_name
from service.retrieval.collections.manifest import Manifest
from service.retrieval.collections.manifest_elastic import ElasticManifests
from service.retrieval.collections.manifest_store import FileManifests, ManifestStore
from service.retrieval.stores import elastic_index, qdrant_store
from service.retrieval.stores.base import LexicalStore, VectorStore
from service.retrieval.stores.elastic_server import ElasticServer, Login
from service.retrieval.stores.elastic_store import ElasticStore
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore
from service.retrieval.stores.qdrant_server import QdrantServer
from service.retrieval.stores.qdrant_store import QdrantStore
from service.retrieval.stores.tantivy_store import TantivyStore


class Backends:
    """The two backends of all collections. Each side may be embedded or on a server, independently.

    The argument `folder` is the folder of one generation's embedded data.
    """

    def __init__(
        self,
        elastic: ElasticServer | None = None,
        qdrant: QdrantServer | None = None,
        vectors: VectorSettings | None = None,
    ) -> None:
        self._elastic = elastic
        self._qdrant = qdrant
        self._vectors = vectors or VectorSettings()

    @property
    def names(self) -> tuple[str, str]:
        """The names of the BM25 backend and the dense backend, as in manifests."""
        return (
            ElasticStore.backend if self._elastic else TantivyStore.backend,
            QdrantStore.backend if self._qdrant else QdrantEdgeStore.backend,
        )

    def manifests(self, root: Path) -> ManifestStore:
        """Open the store of manifests; `root` is its folder in the data directory."""
        files = FileManifests(root)
        return ElasticManifests(self._elastic, files) if self._elastic else files

    def create(
        self, folder: Path, manifest: Manifest, *, replace: bool = False
    ) -> tuple[LexicalStore, VectorStore]:
        """Create the stores of a generation. Blocking: call it in a worker thread. Raises
        RevelatorError.

        Existing contents of this generation on a server are replaced only if they are empty, or
        with `replace`.
        """
        own = stored_name(manifest.name, manifest.generation)
        bm25: LexicalStore
        if self._elastic:
            bm25 = ElasticStore.create(self._elastic, own, manifest.analysis, replace=replace)
        else:
            bm25 = TantivyStore.open(folder / "bm25", manifest.analysis)
        if self._qdrant:
            return bm25, QdrantStore.create(
                self._qdrant, own, manifest.embedding, self._vectors, replace=replace
            )
        return bm25, QdrantEdgeStore.open(folder / "dense", manifest.embedding, self._vectors)

    def open(self, folder: Path, manifest: Manifest) -> tuple[LexicalStore, VectorStore]:
        """Open the stores. Blocking, but without requests to servers, so that an unavailable server
        affects only its side of a search.

        Raises StoreError, also for a collection stored in other backends.
        """
        if manifest.stores != self.names:
            raise StoreError(
                f"collection {manifest.name!r} is stored in {' and '.join(manifest.stores)}, but "
                f"the settings use {' and '.join(self.names)}; restore "
                "retrieval.elasticsearch_url and retrieval.qdrant_url, or delete the collection "
                "(revelator collections delete NAME) and ingest it again"
            )
        own = stored_name(manifest.name, manifest.generation)
        bm25: LexicalStore
        if self._elastic:
            bm25 = ElasticStore(self._elastic, own)
        else:
            bm25 = TantivyStore.open(folder / "bm25", manifest.analysis)
        if self._qdrant:
            return bm25, QdrantStore(self._qdrant, own, self._vectors)
        return bm25, QdrantEdgeStore.open(folder / "dense", manifest.embedding, self._vectors)

    def make_dense(self, manifest: Manifest) -> None:
        """Create the collection that Qdrant has lost again, empty. Blocking."""
        assert self._qdrant is not None
        own = stored_name(manifest.name, manifest.generation)
        QdrantStore.create(self._qdrant, own, manifest.embedding, self._vectors, replace=True)

    def make_bm25(self, manifest: Manifest) -> None:
        """Create the index that Elasticsearch has lost again, empty. Blocking."""
        assert self._elastic is not None
        own = stored_name(manifest.name, manifest.generation)
        ElasticStore.create(self._elastic, own, manifest.analysis, replace=True)

    def begin_bm25(self, manifest: Manifest) -> LexicalStore:
        """As `make_bm25`, under another name until `finish_bm25`. Blocking."""
        assert self._elastic is not None
        return ElasticStore.create(
            self._elastic, _restored(manifest), manifest.analysis, replace=True
        )

    async def finish_bm25(self, manifest: Manifest) -> None:
        """Make the index created by `begin_bm25` the collection's index."""
        assert self._elastic is not None
        own = stored_name(manifest.name, manifest.generation)
        await elastic_index.rename(self._elastic, _restored(manifest), own)

    async def note(self, manifest: Manifest) -> None:
        """Store a copy of the manifest with the vectors, if they are on a server."""
        if self._qdrant:
            with contextlib.suppress(StoreLost):  # a copy is kept of what is there
                await generations.note_in_qdrant(self._qdrant, manifest)

    async def agrees(self, manifest: Manifest) -> bool:
        """Whether that copy equals this manifest. True if there is none."""
        if self._qdrant is None:
            return True
        try:
            return await generations.noted_in_qdrant(self._qdrant, manifest) == manifest
        except StoreLost:
            return False

    async def publish(self, manifest: Manifest) -> None:
        """Point the servers' public aliases at the manifest's generation."""
        if self._elastic:
            await generations.point_elastic(self._elastic, manifest.name, manifest.generation)
        if self._qdrant:
            await generations.point_qdrant(self._qdrant, manifest.name, manifest.generation)

    async def transport(self) -> tuple[str, str] | None:
        """Return where Qdrant is and which protocol is used, or None for embedded vectors. Raises
        RevelatorError if it does not respond."""
        if self._qdrant is None:
            return None
        return self._qdrant.place, await self._qdrant.spoken()

    async def drop(self, name: str, generation: int | None = None) -> None:
        """Delete the servers' data of one generation, or of a collection including its manifest.

        Missing data is not an error.
        """
        if generation is not None:
            own = stored_name(name, generation)
            if self._elastic:
                await elastic_index.drop(self._elastic, own)
            if self._qdrant:
                await qdrant_store.drop(self._qdrant, own)
            return
        if self._elastic:
            await generations.drop_elastic(self._elastic, name)
        if self._qdrant:
            await generations.drop_qdrant(self._qdrant, name)
        if self._elastic:
            await manifest_elastic.forget(self._elastic, name)

    async def aclose(self) -> None:
        for server in (self._elastic, self._qdrant):
            if server:
                await server.aclose()


def _restored(manifest: Manifest) -> str:
    """An index that is being filled again; its name is that of no generation."""
    return stored_name(manifest.name, f"{manifest.generation}.restored")


def open_backends(settings: RetrievalSettings) -> Backends:
    """Create the backends without connecting."""
    url, qdrant_url = settings.elasticsearch_url, settings.qdrant_url
    # Searches are allowed less than writes: each is bounded by its guard.
    elastic_s = max(settings.write_timeout_s, settings.search_timeout_s("elasticsearch"))
    qdrant_s = max(settings.write_timeout_s, settings.search_timeout_s("qdrant"))
    return Backends(
        ElasticServer(url, elastic_s, settings.elasticsearch_replicas, _login(settings))
        if url
        else None,
        QdrantServer(
            qdrant_url,
            qdrant_s,
            settings.qdrant_grpc_port,
            key=_plain(settings.qdrant_key),
            ca_file=settings.qdrant_ca_file,
        )
        if qdrant_url
        else None,
        settings.vectors,
    )


def _login(settings: RetrievalSettings) -> Login:
    return Login(
        settings.elasticsearch_user or "",
        _plain(settings.elasticsearch_password),
        _plain(settings.elasticsearch_api_key),
        settings.elasticsearch_ca_file,
    )


def _plain(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""
