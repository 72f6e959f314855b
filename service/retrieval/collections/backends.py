"""The two sides of all collections, BM25 and dense, each embedded or on a server.

A server has for each collection an alias `revelator-<collection>`, which is for other programs. It
follows the manifest and is never read by Revelator: searches and writes name the generation in the
manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread
from pydantic import SecretStr

from service.core.errors import StoreError, StoreLost
from service.core.files import OPENING_ROOM, check_room, discard
from service.core.settings import RetrievalSettings
from service.core.settings.retrieval import Quantization
from service.retrieval.base import SIDES, SideName
from service.retrieval.collections.elasticsearch import PATIENCE_S, ElasticManifests, drop_manifest
from service.retrieval.collections.manifest import EMBEDDED, FileManifests, Manifest, stored_name
from service.retrieval.stores import elastic_store, qdrant_store
from service.retrieval.stores.base import LexicalStore, Unopened, VectorStore, to_its_end
from service.retrieval.stores.digests import damage, seal, set_aside
from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.elastic_store import ElasticStore
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore, recover
from service.retrieval.stores.qdrant_server import QdrantServer
from service.retrieval.stores.qdrant_store import QdrantStore
from service.retrieval.stores.tantivy_store import TantivyStore

WRITE_S: Final = 30.0  # seconds, for requests other than searches
AT_ONCE: Final = 8  # searches of embedded BM25 stores in threads


class Backends:
    """The two sides of all collections, each embedded unless its server is given.

    `patience_s`: seconds that a writer waits for another gateway. The argument `folder` is the
    folder of one generation's embedded data.
    """

    def __init__(
        self,
        elastic: ElasticServer | None = None,
        qdrant: QdrantServer | None = None,
        quantization: Quantization = "none",
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._elastic = elastic
        self._qdrant = qdrant
        self._quantization = quantization
        self._patience_s = patience_s
        self._searching = anyio.CapacityLimiter(AT_ONCE)

    @property
    def names(self) -> tuple[str, str]:
        """The names of the BM25 backend and the dense backend, as in manifests."""
        return (
            ElasticStore.backend if self._elastic else TantivyStore.backend,
            QdrantStore.backend if self._qdrant else QdrantEdgeStore.backend,
        )

    def manifests(self, root: Path) -> FileManifests | ElasticManifests:
        """Return where manifests are: with the BM25 stores."""
        files = FileManifests(root)
        if self._elastic is None:
            return files
        return ElasticManifests(self._elastic, files, self._patience_s)

    async def create(
        self, folder: Path, manifest: Manifest, *, replace: bool = False
    ) -> tuple[LexicalStore, VectorStore]:
        """Create the stores of a generation. Raises RevelatorError.

        Existing contents of this generation on a server are replaced only if they are empty, or
        with `replace`. Raises StoreError before anything is created if the disk of an embedded
        store is nearly full.
        """
        await to_thread.run_sync(self.check_room, folder)
        bm25 = await self.create_bm25(folder, manifest, replace=replace)
        return bm25, await self.create_dense(folder, manifest, replace=replace)

    async def create_bm25(
        self, folder: Path, manifest: Manifest, *, replace: bool = True
    ) -> LexicalStore:
        if self._elastic:
            name, analysis = manifest.stored_name, manifest.analysis
            return await to_its_end(
                elastic_store.create(self._elastic, name, analysis, replace=replace)
            )
        await to_thread.run_sync(discard, folder / "bm25")
        return await to_thread.run_sync(self._tantivy, folder, manifest)

    async def create_dense(
        self, folder: Path, manifest: Manifest, *, replace: bool = True
    ) -> VectorStore:
        if self._qdrant:
            name, contract = manifest.stored_name, manifest.embedding
            create = qdrant_store.create
            return await to_its_end(
                create(self._qdrant, name, contract, self._quantization, replace=replace)
            )
        await to_thread.run_sync(discard, folder / "dense")
        return await to_thread.run_sync(self._edge, folder, manifest)

    def _tantivy(self, folder: Path, manifest: Manifest) -> TantivyStore:
        return TantivyStore(folder / "bm25", manifest.analysis, self._searching)

    def _edge(self, folder: Path, manifest: Manifest) -> QdrantEdgeStore:
        return QdrantEdgeStore(folder / "dense", manifest.embedding, self._quantization)

    def check_room(self, folder: Path) -> None:
        """Raise StoreError if a store is embedded and the folder's disk is nearly full."""
        if not set(self.names).isdisjoint(EMBEDDED):
            check_room(folder)

    def open(self, folder: Path, manifest: Manifest) -> tuple[LexicalStore, VectorStore]:
        """Open the stores. Blocking, but without requests to servers, so that an unavailable server
        affects only its side of a search. A store that cannot be opened is `Unopened`.

        Raises StoreError if neither can be opened, and for a collection stored in other backends.
        """
        if manifest.stores != self.names:
            raise StoreError(
                f"collection {manifest.name!r} is stored in {' and '.join(manifest.stores)}, but "
                f"the settings use {' and '.join(self.names)}; restore "
                "retrieval.elasticsearch_url and retrieval.qdrant_url, or delete the collection "
                "(revelator collections delete NAME) and ingest it again"
            )
        bm25, dense = (self._opened(side, folder, manifest) for side in SIDES)
        if isinstance(bm25, Unopened) and isinstance(dense, Unopened):
            raise StoreError(
                f"collection {manifest.name!r} is unavailable: {bm25.why.detail}; "
                f"{dense.why.detail}; if both are damaged, delete the collection (revelator "
                "collections delete NAME) and ingest it again"
            )
        return bm25, dense

    def _opened(self, side: SideName, folder: Path, manifest: Manifest) -> Any:
        """Open one side. Its files that are damaged are not given to native code, which may end the
        process."""
        place = folder / side
        try:
            if not manifest.interrupted and (spoilt := damage(place)):
                raise StoreLost(damaged(manifest.name, spoilt))
            if side == "bm25":
                return self._open_bm25(folder, manifest)
            kept = not manifest.interrupted and set_aside(place)
            store = self._open_dense(folder, manifest)
        except StoreError as error:
            return Unopened(self.names[SIDES.index(side)], error)
        if kept:  # opening a shard compacts its small files
            with suppress(OSError):  # the next opening writes them, when the disk has room
                seal(place)
        return store

    def _open_bm25(self, folder: Path, manifest: Manifest) -> LexicalStore:
        if manifest.restoring:
            raise not_restored(manifest)
        if self._elastic:
            return ElasticStore(self._elastic, manifest.stored_name)
        _check_held(folder / "bm25" / "meta.json", manifest)
        return self._tantivy(folder, manifest)

    def _open_dense(self, folder: Path, manifest: Manifest) -> VectorStore:
        if self._qdrant:
            return QdrantStore(self._qdrant, manifest.stored_name, self._quantization)
        recover(folder / "dense")
        _check_held(folder / "dense" / "edge_config.json", manifest)
        check_room(folder, OPENING_ROOM, f"to open the vectors of collection {manifest.name!r}")
        return self._edge(folder, manifest)

    async def publish(self, manifest: Manifest) -> None:
        """Point the servers' public aliases at the manifest's generation."""
        if self._elastic:
            await elastic_store.publish(self._elastic, manifest.name, manifest.stored_name)
        if self._qdrant:
            await qdrant_store.publish(self._qdrant, manifest.name, manifest.stored_name)

    async def drop(
        self, name: str, generation: int | None = None, sides: Sequence[SideName] = SIDES
    ) -> None:
        """Delete the servers' data of one generation, or of a collection including its manifest.

        Missing data is not an error; who owns the folder of embedded data deletes it.
        """
        stored = stored_name(name, "*" if generation is None else generation)
        if self._elastic and "bm25" in sides:
            await elastic_store.drop(self._elastic, stored)
        if self._qdrant and "dense" in sides:
            await qdrant_store.drop(self._qdrant, stored)
        if self._elastic and generation is None:
            await drop_manifest(self._elastic, name)

    async def transport(self) -> tuple[str, str] | None:
        """Return where Qdrant is and which protocol is used, or None for embedded vectors. Raises
        RevelatorError if it does not respond."""
        return (self._qdrant.place, await self._qdrant.check()) if self._qdrant else None

    async def aclose(self) -> None:
        for server in (self._elastic, self._qdrant):
            if server is not None:
                await server.aclose()


def _check_held(path: Path, manifest: Manifest) -> None:
    if manifest.passages and not path.exists():
        raise StoreLost(
            f"{path} is missing, although collection {manifest.name!r} has passages; "
            f"revelator check --collection {manifest.name} --repair rebuilds it"
        )


def not_restored(manifest: Manifest) -> StoreLost:
    return StoreLost(f"the BM25 store of {manifest.name!r} is not restored yet")


def damaged(name: str, spoilt: Sequence[Path]) -> str:
    """Describe files that are not as they were written."""
    shown = ", ".join(map(str, spoilt[:3]))
    more = f" and {len(spoilt) - 3} more" if len(spoilt) > 3 else ""
    return f"damaged files of collection {name!r}: {shown}{more}"


def open_backends(settings: RetrievalSettings, patience_s: float = PATIENCE_S) -> Backends:
    """Create the backends without connecting."""
    # Searches have a shorter limit than writes: each is bounded by its guard.
    limit_s = max(WRITE_S, settings.timeout_s)
    elastic = qdrant = None
    if url := settings.elasticsearch_url:
        elastic = ElasticServer(url, limit_s, key=_plain(settings.elasticsearch_key))
    if url := settings.qdrant_url:
        key, port = _plain(settings.qdrant_key), settings.qdrant_grpc_port
        qdrant = QdrantServer(url, limit_s, port, key=key)
    return Backends(elastic, qdrant, settings.quantization, patience_s)


def _plain(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""
