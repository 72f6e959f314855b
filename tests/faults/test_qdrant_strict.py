"""A Qdrant whose operator has limited requests (strict mode): collections are still listed,
compared, repaired and searched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from service.core.concurrency import gather
from service.core.errors import RetrievalFailure, StoreError
from service.retrieval.base import SearchRequest
from service.retrieval.collections.backends import Backends
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.stores.qdrant_server import QdrantServer
from tests.server_nodes import Node, running_qdrant
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import SETTINGS, opened

MODE = "QDRANT__STORAGE__COLLECTION__STRICT_MODE__"
LIMIT = 100
UPSERTS = 20  # fewer than a batch of passages
NAME = "strict"
COUNT = 250


@pytest.fixture(scope="module")
def strict(qdrant_script: Path) -> Iterator[Node]:
    settings = {
        f"{MODE}ENABLED": "true",
        f"{MODE}MAX_QUERY_LIMIT": str(LIMIT),
        f"{MODE}SEARCH_MAX_BATCHSIZE": "2",
        f"{MODE}CONDITION_MAX_SIZE": str(LIMIT),
        f"{MODE}UPSERT_MAX_BATCHSIZE": str(UPSERTS),
        f"{MODE}UNINDEXED_FILTERING_RETRIEVE": "false",
        f"{MODE}UNINDEXED_FILTERING_UPDATE": "false",
    }
    with running_qdrant(qdrant_script, settings=settings) as node:
        yield node


@pytest.mark.parametrize("protocol", ["gRPC", "REST"])
async def test_compared_and_repaired_within_its_limits(
    tmp_path: Path, strict: Node, protocol: str
) -> None:
    port = strict.grpc_port if protocol == "gRPC" else 0
    server = QdrantServer(strict.url, 5.0, port)
    backends = Backends(None, server)
    async with opened(tmp_path, backends=backends) as collections:
        await backends.drop(NAME)
        await collections.create(NAME)
        documents = [{"id": f"d{n}", "text": f"Volcano {n}", "kind": n % 2} for n in range(COUNT)]
        await ingest_documents(documents, NAME, collections)
        info = await server.call(lambda client: client.get_collection(f"revelator-{NAME}.1"))
        assert list(info.payload_schema) == ["filter"]  # the one that searches use
        dense = (await collections.get(NAME)).dense
        await dense.delete(["d7", "d8"])
        assert [each.count for each in (await collections.check(NAME)).findings] == [2]
        assert (await collections.check(NAME, repair=True)).left == []

        # What makes it read the dense store through: a vector that no passage has.
        bm25 = (await collections.get(NAME)).bm25
        await bm25.replace(["d9"], [])
        report = await collections.check(NAME, repair=True)
        assert "vectors removed: 1" in report.done
        assert report.left == []

        retriever = HybridRetriever(collections, HashingEmbedder(), SETTINGS)
        for request in (
            SearchRequest("volcano 7", 10, NAME),
            SearchRequest("volcano 7", 60, NAME, filter={"kind": (1,)}),
        ):
            found = await retriever.search(request)
            assert (len(found.passages), found.missing) == (request.top_k, ())
        five = [SearchRequest(f"volcano {n}", 10, NAME, "dense") for n in range(5)]
        together = await gather([partial(retriever.search, request) for request in five])
        assert together == [await retriever.search(request) for request in five]
        long = replace(five[0], filter={"kind": tuple(range(LIMIT + 1))})
        *served, refused = await asyncio.gather(
            *map(retriever.search, [*five, long]), return_exceptions=True
        )
        assert isinstance(refused, RetrievalFailure)
        assert "raise it for the collection" in refused.detail
        assert served == together
    await backends.aclose()


async def test_a_limit_that_cannot_be_kept_is_named(strict: Node) -> None:
    """And nobody is told to delete the collection for it."""
    server = QdrantServer(strict.url, 5.0, 0)
    try:
        await server.call(lambda client: client.create_collection("limited", vectors_config={}))
        with pytest.raises(StoreError, match=r'Limit exceeded 200 > 100 for .*"limit') as told:
            await server.call(lambda client: client.scroll("limited", limit=200))
        assert "raise it for the collection" in told.value.detail
        assert "delete" not in told.value.detail
    finally:
        await server.aclose()
