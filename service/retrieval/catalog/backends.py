"""Opens a collection's two stores: in this process, or on the servers that the settings name."""

from __future__ import annotations

from pathlib import Path

from service.errors import StoreError
from service.retrieval.catalog import generations, manifest_elastic
from service.retrieval.catalog.generations import stored_name
from service.retrieval.catalog.manifest_elastic import ElasticManifests
from service.retrieval.catalog.manifest_store import FileManifests, ManifestStore
from service.retrieval.manifest import Manifest
from service.retrieval.stores import elastic_index, qdrant_store
from service.retrieval.stores.base import LexicalStore, VectorStore
from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.elastic_store import ElasticStore
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore
from service.retrieval.stores.qdrant_server import QdrantServer
from service.retrieval.stores.qdrant_store import QdrantStore
from service.retrieval.stores.tantivy_store import TantivyStore
from service.settings import RetrievalSettings
from service.settings.vectors import VectorSettings


class Backends:
    """Either side may be a server: Elasticsearch with embedded vectors, or the other way round.

    `folder` is that of one generation, for what is embedded of it.
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
        """Of the BM25 and the dense backend, as a manifest has them."""
        return (
            ElasticStore.backend if self._elastic else TantivyStore.backend,
            QdrantStore.backend if self._qdrant else QdrantEdgeStore.backend,
        )

    def manifests(self, root: Path) -> ManifestStore:
        """The authority on what collections there are; `root` is the data directory's part."""
        files = FileManifests(root)
        return ElasticManifests(self._elastic, files) if self._elastic else files

    def create(
        self, folder: Path, manifest: Manifest, *, replace: bool = False
    ) -> tuple[LexicalStore, VectorStore]:
        """Blocking, in a worker thread where a server is named. Raises RevelatorError.

        What a server holds already of this generation is only replaced where it is empty, or with
        `replace`.
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
        """Blocking; asks no server, so that one that is out costs its side of a search only.

        Raises StoreError, also for a collection that other backends hold.
        """
        if manifest.stores != self.names:
            raise StoreError(
                f"collection {manifest.name!r} is held by {' and '.join(manifest.stores)}, the "
                f"settings name {' and '.join(self.names)}; set retrieval.elasticsearch_url and "
                "retrieval.qdrant_url back, or delete the collection and ingest it again"
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

    async def note(self, manifest: Manifest) -> None:
        """Keep a copy of the manifest beside the vectors, where they are on a server."""
        if self._qdrant:
            await generations.note_in_qdrant(self._qdrant, manifest)

    async def agrees(self, manifest: Manifest) -> bool:
        """Whether the copy is this manifest; True where none is kept."""
        if self._qdrant is None:
            return True
        return await generations.noted_in_qdrant(self._qdrant, manifest) == manifest

    async def publish(self, manifest: Manifest) -> None:
        """Let the servers' public aliases name the manifest's generation."""
        if self._elastic:
            await generations.point_elastic(self._elastic, manifest.name, manifest.generation)
        if self._qdrant:
            await generations.point_qdrant(self._qdrant, manifest.name, manifest.generation)

    async def drop(self, name: str, generation: int | None = None) -> None:
        """Delete what the servers hold of one generation, or of a collection with its manifest.

        What is absent is no error.
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


def open_backends(settings: RetrievalSettings) -> Backends:
    """Connects to nothing yet."""
    url, qdrant_url = settings.elasticsearch_url, settings.qdrant_url
    # Searches may be allowed less than writes: each search is bounded by its guard.
    elastic_s = max(settings.timeout_s, settings.backends.elasticsearch.timeout_s or 0.0)
    qdrant_s = max(settings.timeout_s, settings.backends.qdrant.timeout_s or 0.0)
    return Backends(
        ElasticServer(url, elastic_s, settings.elasticsearch_replicas) if url else None,
        QdrantServer(qdrant_url, qdrant_s, settings.qdrant_grpc_port) if qdrant_url else None,
        settings.vectors,
    )
