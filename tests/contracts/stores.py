"""The pairs of stores that every contract of retrieval is held to. Add an adapter here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

import pytest

from service.retrieval.base import Retriever
from service.retrieval.collections.backends import Backends
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.qdrant_server import QdrantServer
from tests.support.documents import ingest_documents
from tests.support.qdrant import QdrantInMemory
from tests.unit.retrieval.worlds import SETTINGS, opened

WRITE_S = 20.0
# qdrant-client's engine in this process says that it scans everything.
QUIET = pytest.mark.filterwarnings(
    "ignore:Payload indexes have no effect:UserWarning",
    "ignore:Local mode performs exact:UserWarning",
)
NAME = "written"  # of the collection that each test with `backends` creates


def elastic_server(request: pytest.FixtureRequest) -> ElasticServer:
    return ElasticServer(request.getfixturevalue("elasticsearch_url"), WRITE_S)


def qdrant_server(request: pytest.FixtureRequest, protocol: str) -> QdrantServer:
    """A real one by `gRPC` or `REST`, or qdrant-client's engine in this process (`memory`)."""
    if protocol == "memory":
        return QdrantInMemory(WRITE_S)
    url, port = request.getfixturevalue("qdrant")
    return QdrantServer(url, WRITE_S, port if protocol == "gRPC" else 0)


WORLDS: dict[str, Callable[[pytest.FixtureRequest], Backends]] = {
    "tantivy and qdrant-edge": lambda request: Backends(),
    "tantivy and Qdrant in memory": lambda request: Backends(
        None, qdrant_server(request, "memory")
    ),
    "tantivy and Qdrant by gRPC": lambda request: Backends(None, qdrant_server(request, "gRPC")),
    "tantivy and Qdrant by REST": lambda request: Backends(None, qdrant_server(request, "REST")),
    "Elasticsearch and qdrant-edge": lambda request: Backends(elastic_server(request), None),
    "Elasticsearch and Qdrant by gRPC": lambda request: Backends(
        elastic_server(request), qdrant_server(request, "gRPC")
    ),
}


def reading(
    corpora: Mapping[str, Sequence[Any]], pairs: Collection[str] = tuple(WORLDS)
) -> Callable[..., AsyncIterator[Retriever]]:
    """A fixture: a retriever over these corpora, by the names of their collections, on each pair of
    stores. It is opened once, because the tests of a module only read."""

    @pytest.fixture(scope="module", params=pairs)
    async def retriever(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> AsyncIterator[Retriever]:
        backends = WORLDS[request.param](request)
        try:
            async with opened(tmp_path_factory.mktemp("data"), backends=backends) as collections:
                for name, documents in corpora.items():
                    await backends.drop(name)
                    await collections.create(name)
                    await ingest_documents(documents, name, collections)
                yield HybridRetriever(collections, HashingEmbedder(), SETTINGS)
                for name in corpora:
                    await collections.delete(name)
        finally:
            await backends.aclose()

    return retriever
