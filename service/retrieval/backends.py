"""Opens a collection's two stores: in this process, or on the servers that the settings name.

The manifest stays in the data directory also where both stores are on servers.
"""

from __future__ import annotations

from pathlib import Path

from service.errors import StoreError
from service.retrieval import elastic_index, qdrant_store
from service.retrieval.elastic_server import ElasticServer
from service.retrieval.elastic_store import ElasticStore
from service.retrieval.manifest import Manifest
from service.retrieval.qdrant_edge_store import QdrantEdgeStore
from service.retrieval.qdrant_server import QdrantServer
from service.retrieval.qdrant_store import QdrantStore
from service.retrieval.stores import LexicalStore, VectorStore
from service.retrieval.tantivy_store import TantivyStore
from service.settings import RetrievalSettings
from service.settings.vectors import VectorSettings


class Backends:
    """Either side may be a server: Elasticsearch with embedded vectors, or the other way round."""

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

    def create(self, folder: Path, manifest: Manifest) -> tuple[LexicalStore, VectorStore]:
        """Blocking, in a worker thread where a server is named. Raises RevelatorError.

        What a server holds already under the collection's name is only replaced where it is
        empty or of a shipped collection.
        """
        name, shipped = manifest.name, manifest.source is not None
        bm25: LexicalStore
        if self._elastic:
            bm25 = ElasticStore.create(self._elastic, name, manifest.analysis, replace=shipped)
        else:
            bm25 = TantivyStore.open(folder / "bm25", manifest.analysis)
        if self._qdrant:
            return bm25, QdrantStore.create(
                self._qdrant, name, manifest.embedding, self._vectors, replace=shipped
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
        bm25: LexicalStore
        if self._elastic:
            bm25 = ElasticStore(self._elastic, manifest.name)
        else:
            bm25 = TantivyStore.open(folder / "bm25", manifest.analysis)
        if self._qdrant:
            return bm25, QdrantStore(self._qdrant, manifest.name, self._vectors)
        return bm25, QdrantEdgeStore.open(folder / "dense", manifest.embedding, self._vectors)

    async def drop(self, name: str) -> None:
        """Delete what the servers hold of a collection; what is absent is no error."""
        if self._elastic:
            await elastic_index.drop(self._elastic, name)
        if self._qdrant:
            await qdrant_store.drop(self._qdrant, name)

    async def aclose(self) -> None:
        for server in (self._elastic, self._qdrant):
            if server:
                await server.aclose()


def open_backends(settings: RetrievalSettings) -> Backends:
    """Connects to nothing yet."""
    url, timeout_s = settings.elasticsearch_url, settings.timeout_s
    qdrant_url, grpc_port = settings.qdrant_url, settings.qdrant_grpc_port
    return Backends(
        ElasticServer(url, timeout_s, settings.elasticsearch_replicas) if url else None,
        QdrantServer(qdrant_url, timeout_s, grpc_port) if qdrant_url else None,
        settings.vectors,
    )
