"""The two backends of all collections: BM25 and dense, each embedded or on a server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
from pydantic import SecretStr

from service.core.errors import StoreError, StoreLost
from service.core.files import OPENING_ROOM, check_room, discard
from service.core.settings import RetrievalSettings
from service.core.settings.retrieval import Quantization
from service.retrieval.collections.elasticsearch import Elasticsearch
from service.retrieval.collections.manifest import (
    EMBEDDED,
    FileManifests,
    Manifest,
    ManifestStore,
)
from service.retrieval.collections.qdrant import Qdrant
from service.retrieval.stores.base import LexicalStore, Unopened, VectorStore
from service.retrieval.stores.digests import damage, seal, sealed, set_aside, unchanged
from service.retrieval.stores.elastic_server import ElasticServer, Login
from service.retrieval.stores.qdrant_edge_graph import recover
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore
from service.retrieval.stores.qdrant_server import QdrantServer
from service.retrieval.stores.tantivy_store import TantivyStore

WRITE_S: Final = 30.0  # seconds, for requests other than searches
AT_ONCE: Final = 8  # searches of embedded BM25 stores in threads


class CollectionBackend(Protocol):
    """One side of all collections. `name` is its name in manifests and metrics."""

    @property
    def name(self) -> str: ...

    async def publish(self, manifest: Manifest) -> None:
        """Point the server's public alias at the manifest's generation."""

    async def drop(self, name: str, generation: int | None = None) -> None:
        """Delete the server's data of one generation, or of all. Missing data is not an error."""

    async def aclose(self) -> None: ...


class LexicalBackend(CollectionBackend, Protocol):
    """Keeps the BM25 stores, and the manifests."""

    def manifests(self, root: Path) -> ManifestStore: ...

    def create(self, folder: Path, manifest: Manifest, *, replace: bool) -> LexicalStore: ...

    def open(self, folder: Path, manifest: Manifest) -> LexicalStore: ...

    async def drop_manifest(self, name: str) -> None:
        """Delete the server's manifest of a collection."""


class VectorBackend(CollectionBackend, Protocol):
    """Keeps the dense stores."""

    def create(self, folder: Path, manifest: Manifest, *, replace: bool) -> VectorStore: ...

    def open(self, folder: Path, manifest: Manifest) -> VectorStore: ...

    async def transport(self) -> tuple[str, str] | None:
        """Return where Qdrant is and which protocol is used, or None for embedded vectors. Raises
        RevelatorError if it does not respond."""


class _Embedded:
    """A backend whose data is only a folder: it has no alias, and the folder's owner deletes it."""

    async def publish(self, manifest: Manifest) -> None: ...

    async def drop(self, name: str, generation: int | None = None) -> None: ...

    async def aclose(self) -> None: ...


class Tantivy(_Embedded):
    """BM25 in this process."""

    name = TantivyStore.backend

    def __init__(self) -> None:
        self._searching = anyio.CapacityLimiter(AT_ONCE)

    def manifests(self, root: Path) -> FileManifests:
        return FileManifests(root)

    def create(self, folder: Path, manifest: Manifest, *, replace: bool) -> TantivyStore:
        if replace:
            discard(folder / "bm25")
        return TantivyStore(folder / "bm25", manifest.analysis, self._searching)

    def open(self, folder: Path, manifest: Manifest) -> TantivyStore:
        _check_held(folder / "bm25" / "meta.json", manifest)
        return self.create(folder, manifest, replace=False)

    async def drop_manifest(self, name: str) -> None: ...


class QdrantEdge(_Embedded):
    """Dense search in this process."""

    name = QdrantEdgeStore.backend

    def __init__(self, quantization: Quantization) -> None:
        self._quantization = quantization

    def create(self, folder: Path, manifest: Manifest, *, replace: bool) -> QdrantEdgeStore:
        if replace:
            discard(folder / "dense")
        return QdrantEdgeStore(folder / "dense", manifest.embedding, self._quantization)

    def open(self, folder: Path, manifest: Manifest) -> QdrantEdgeStore:
        recover(folder / "dense")
        _check_held(folder / "dense" / "edge_config.json", manifest)
        check_room(folder, OPENING_ROOM, f"to open the vectors of collection {manifest.name!r}")
        return QdrantEdgeStore(folder / "dense", manifest.embedding, self._quantization)

    async def transport(self) -> None:
        return None


def _check_held(path: Path, manifest: Manifest) -> None:
    if manifest.passages and not path.exists():
        raise StoreLost(
            f"{path} is missing, although collection {manifest.name!r} has {manifest.passages:,} "
            f"passages; revelator check --collection {manifest.name} --repair rebuilds it"
        )


class Backends:
    """The two backends of all collections, each embedded unless its server is given.

    The argument `folder` is the folder of one generation's embedded data.
    """

    def __init__(
        self,
        elastic: ElasticServer | None = None,
        qdrant: QdrantServer | None = None,
        quantization: Quantization = "none",
    ) -> None:
        self.bm25: LexicalBackend = Elasticsearch(elastic) if elastic else Tantivy()
        self.dense: VectorBackend = (
            Qdrant(qdrant, quantization) if qdrant else QdrantEdge(quantization)
        )

    @property
    def names(self) -> tuple[str, str]:
        """The names of the BM25 backend and the dense backend, as in manifests."""
        return self.bm25.name, self.dense.name

    def create(
        self, folder: Path, manifest: Manifest, *, replace: bool = False
    ) -> tuple[LexicalStore, VectorStore]:
        """Create the stores of a generation. Blocking: call it in a worker thread. Raises
        RevelatorError.

        Existing contents of this generation on a server are replaced only if they are empty, or
        with `replace`. Raises StoreError before anything is created if the disk of an embedded
        store is nearly full.
        """
        self.check_room(folder)
        bm25 = self.bm25.create(folder, manifest, replace=replace)
        return bm25, self.dense.create(folder, manifest, replace=replace)

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
        spoilt: list[str] = []
        kept = None if manifest.interrupted else sealed(folder) or unchanged(folder)
        if kept is not None:
            spoilt = damage(folder)
            set_aside(folder)
        bm25: LexicalStore = (
            being_restored(self.bm25.name, manifest.name)
            if manifest.restoring
            else _opened(self.bm25, folder, manifest, [n for n in spoilt if n.startswith("bm25/")])
        )
        dense = _opened(self.dense, folder, manifest, [n for n in spoilt if n.startswith("dense/")])
        if kept is not None:  # opening a shard compacts its small files
            with suppress(OSError):  # the next opening writes them, when the disk has room
                seal(folder, kept, {name.split("/")[0] for name in spoilt})
        if isinstance(bm25, Unopened) and isinstance(dense, Unopened):
            raise StoreError(
                f"collection {manifest.name!r} is unavailable: {bm25.why.detail}; "
                f"{dense.why.detail}; if both are damaged, delete the collection (revelator "
                "collections delete NAME) and ingest it again"
            )
        return bm25, dense

    async def publish(self, manifest: Manifest) -> None:
        """Point the servers' public aliases at the manifest's generation."""
        await self.bm25.publish(manifest)
        await self.dense.publish(manifest)

    async def drop(self, name: str, generation: int | None = None) -> None:
        """Delete the servers' data of one generation, or of a collection including its manifest.

        Missing data is not an error.
        """
        await self.bm25.drop(name, generation)
        await self.dense.drop(name, generation)
        if generation is None:
            await self.bm25.drop_manifest(name)

    async def aclose(self) -> None:
        await self.bm25.aclose()
        await self.dense.aclose()


def _opened(backend: Any, folder: Path, manifest: Manifest, spoilt: Sequence[str]) -> Any:
    """`spoilt` files are not given to native code, which may end the process."""
    try:
        if spoilt:
            raise StoreLost(damaged(folder, manifest.name, spoilt))
        return backend.open(folder, manifest)
    except StoreError as error:
        return Unopened(backend.name, error)


def being_restored(backend: str, name: str) -> Any:
    return Unopened(backend, StoreLost(f"the BM25 store of {name!r} is not restored yet"))


def damaged(folder: Path, name: str, spoilt: Sequence[str]) -> str:
    """Describe files that are not as they were written."""
    shown = ", ".join(str(folder / each) for each in spoilt[:3])
    more = f" and {len(spoilt) - 3} more" if len(spoilt) > 3 else ""
    return f"damaged files of collection {name!r}: {shown}{more}"


def open_backends(settings: RetrievalSettings) -> Backends:
    """Create the backends without connecting."""
    url, qdrant_url = settings.elasticsearch_url, settings.qdrant_url
    # Searches have a shorter limit than writes: each is bounded by its guard.
    limit_s = max(WRITE_S, settings.timeout_s)
    return Backends(
        ElasticServer(url, limit_s, _login(settings)) if url else None,
        QdrantServer(
            qdrant_url,
            limit_s,
            settings.qdrant_grpc_port,
            key=_plain(settings.qdrant_key),
            ca_files=settings.ca_files,
        )
        if qdrant_url
        else None,
        settings.quantization,
    )


def _login(settings: RetrievalSettings) -> Login:
    return Login(
        settings.elasticsearch_user or "",
        _plain(settings.elasticsearch_password),
        _plain(settings.elasticsearch_api_key),
        settings.ca_files,
    )


def _plain(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""
