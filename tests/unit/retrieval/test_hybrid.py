from __future__ import annotations

import time
from typing import Any

import anyio
import pytest

from service.errors import ConfigurationError, InvalidRequest, NotFound, RetrievalFailure
from service.retrieval.base import SearchRequest
from service.retrieval.embedding import HASHING
from service.retrieval.hybrid import HybridRetriever
from service.settings import RetrievalSettings
from tests.unit.retrieval.worlds import CountingEmbedder, FakeCatalog, FakeStore

pytestmark = pytest.mark.anyio


class World:
    def __init__(self, *, incomplete: bool = False) -> None:
        self.bm25 = FakeStore("tantivy", ["a", "b"])
        self.dense = FakeStore("qdrant_edge", ["b", "c"])
        self.embedder = CountingEmbedder()
        self.observed: list[tuple[str, bool]] = []
        self.catalog = FakeCatalog(self.bm25, self.dense, incomplete=incomplete)
        self.retriever = HybridRetriever(
            self.catalog,
            self.embedder,
            RetrievalSettings(timeout_s=0.2),
            lambda backend, seconds, failed: self.observed.append((backend, failed)),
        )

    async def ask(
        self, retriever: Any = "hybrid", **fields: Any
    ) -> tuple[list[str], tuple[str, ...]]:
        request = SearchRequest(**{"query": "q", "top_k": 3, "collection": "c", **fields},
                                retriever=retriever)  # fmt: skip
        result = await self.retriever.search(request)
        return [hit.passage.passage_id for hit in result.passages], result.missing


async def test_both_sides_are_fused_and_observed() -> None:
    world = World()
    assert await world.ask() == (["b", "a", "c"], ())
    assert sorted(world.observed) == [
        ("embedding", False), ("qdrant_edge", False), ("tantivy", False),
    ]  # fmt: skip
    assert world.bm25.queries[0].top_k == 30
    assert len(world.dense.queries[0].vector) == 384


async def test_both_sides_are_asked_at_once() -> None:
    world = World()
    world.bm25.delay_s = world.dense.delay_s = 0.1
    started = time.perf_counter()
    await world.ask()
    assert time.perf_counter() - started < 0.19


@pytest.mark.parametrize(("out", "rest"), [("bm25", ["b", "c"]), ("dense", ["a", "b"])])
@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_one_side_out(out: str, rest: list[str], how: str) -> None:
    world = World()
    store = world.bm25 if out == "bm25" else world.dense
    if how == "fails":
        store.breaks()
    else:
        store.delay_s = 5
    assert await world.ask() == (rest, (out,))
    assert (store.backend, True) in world.observed
    with pytest.raises(RetrievalFailure, match=store.backend):
        await world.ask(out)
    assert await world.ask("dense" if out == "bm25" else "bm25") == (rest, ())


async def test_both_sides_out_names_both() -> None:
    world = World()
    world.bm25.breaks()
    world.dense.delay_s = 5
    with pytest.raises(
        RetrievalFailure, match=r"bm25 is out: tantivy broke; dense is out: .*0.2 s"
    ):
        await world.ask()
    world.bm25.failure, world.dense.delay_s = None, 0
    assert (await world.ask())[1] == ()


async def test_without_an_embedder_bm25_answers() -> None:
    world = World()
    world.embedder.failure = ConfigurationError("pip install 'revelator[local]'")
    assert await world.ask() == (["a", "b"], ("dense",))
    with pytest.raises(RetrievalFailure, match="pip install"):
        await world.ask("dense")
    world.embedder.failure, world.embedder.delay_s = None, 5
    assert await world.ask() == (["a", "b"], ("dense",))
    assert ("embedding", True) in world.observed


async def test_vectors_of_another_model_are_not_searched() -> None:
    world = World()
    world.embedder.contract = HASHING.model_copy(update={"query_prefix": "query: "})
    assert await world.ask() == (["a", "b"], ("dense",))
    assert world.dense.queries == []
    with pytest.raises(RetrievalFailure, match="query_prefix is '', the settings say 'query: '"):
        await world.ask("dense")


async def test_an_incomplete_index_is_said() -> None:
    world = World(incomplete=True)
    assert (await world.ask())[1] == ("index-incomplete",)
    assert (await world.ask("bm25"))[1] == ("index-incomplete",)


async def test_a_programming_error_is_not_an_outage() -> None:
    world = World()
    world.bm25.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await world.ask()


async def test_cancelling_leaves_at_once() -> None:
    world = World()
    world.bm25.delay_s = world.dense.delay_s = 0.15
    started = time.perf_counter()
    with anyio.move_on_after(0.02):
        await world.ask()
    assert time.perf_counter() - started < 0.1


async def test_search_many_keeps_order_and_fails_as_one() -> None:
    world = World()
    requests = [SearchRequest("q", n, "c", "bm25") for n in (1, 2, 0)]
    results = await world.retriever.search_many(requests)
    assert [len(result.passages) for result in results] == [1, 2, 0]
    world.bm25.breaks()
    with pytest.raises(RetrievalFailure):
        await world.retriever.search_many(requests)


async def test_check_request() -> None:
    retriever = World().retriever
    assert await retriever.check_request(None, {"kind": ("x",)}) == "c"
    with pytest.raises(NotFound, match="there is: c"):
        await retriever.check_request("d", {})
    with pytest.raises(InvalidRequest, match="no metadata field 'colour'; it has: kind, year"):
        await retriever.check_request("c", {"colour": ("red",)})


async def test_a_blank_query_finds_nothing_and_asks_nobody() -> None:
    world = World()
    assert await world.ask(query=" \n") == ([], ())
    assert world.bm25.queries == []


async def test_closing_closes_the_catalog() -> None:
    world = World()
    await world.retriever.aclose()
    assert world.catalog.closed
