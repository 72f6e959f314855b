from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from service.core.domain import Passage, ScoredPassage
from service.core.errors import BackendUnavailable
from service.core.settings import RetrievalSettings
from service.retrieval.base import SearchRequest
from service.retrieval.search import guard
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.search.reranking import Reranking, by_score
from tests.support.observed import Observed
from tests.unit.retrieval.worlds import CountingEmbedder, FakeCatalog, FakeStore


class FakeReranker:
    """Scores by a table of titles; fails or hangs when told to."""

    def __init__(self) -> None:
        self.table = {"A": 0.1, "B": 0.2, "C": 0.9, "D": 0.2}
        self.failure: Exception | None = None
        self.delay_s = 0.0
        self.asked: list[list[str]] = []

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        self.asked.append(list(passages))
        await anyio.sleep(self.delay_s)
        if self.failure:
            raise self.failure
        return [self.table[passage.split(".")[0]] for passage in passages]

    async def aclose(self) -> None: ...


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "RETRIES", 0)
    monkeypatch.setattr(guard, "FAILURES", 2)


class World:
    def __init__(self, top_n: int = 30) -> None:
        settings = RetrievalSettings.model_validate(
            {
                "timeout_s": 0.5,
                "reranker": {"kind": "tei", "url": "http://tei", "top_n": top_n},
            }
        )
        self.reranker, self.observed = FakeReranker(), Observed()
        self.bm25 = FakeStore("tantivy", ["a", "b", "d"])
        assert settings.reranker is not None
        self.retriever = HybridRetriever(
            FakeCatalog(self.bm25, FakeStore("qdrant_edge", ["b", "c"])),
            CountingEmbedder(),
            settings,
            self.observed,
            Reranking(self.reranker, settings.reranker, settings, self.observed),
        )

    async def ask(self, **fields: Any) -> list[str]:
        request = SearchRequest(**{"query": "q", "top_k": 3, "collection": "c", **fields})
        result = await self.retriever.search(request)
        assert result.missing == ()
        assert [hit.rank for hit in result.passages] == list(range(1, len(result.passages) + 1))
        return [hit.passage.passage_id for hit in result.passages]


async def test_hybrid_is_reordered_before_the_cut() -> None:
    world = World()
    assert await world.ask(top_k=2) == ["c", "b"]
    assert len(world.reranker.asked) == 1
    assert sorted(world.reranker.asked[0]) == ["A. text", "B. text", "C. text", "D. text"]
    assert ("reranker", False) in world.observed.searches


async def test_explicit_retrievers_keep_their_own_order() -> None:
    world = World()
    assert await world.ask(retriever="bm25") == ["a", "b", "d"]
    assert world.reranker.asked == []


async def test_top_n_bounds_what_is_scored_but_never_below_top_k() -> None:
    world = World(top_n=1)
    assert await world.ask(top_k=1) == ["b"]
    assert len(world.reranker.asked[-1]) == 1
    assert await world.ask(top_k=4) == ["c", "b", "d", "a"]


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_reranker_that_is_out_leaves_the_fused_order(how: str) -> None:
    world = World()
    if how == "fails":
        world.reranker.failure = BackendUnavailable("out")
    else:
        world.reranker.delay_s = 30
    assert [await world.ask() for _ in range(4)] == [["b", "a", "c"]] * 4
    assert len(world.reranker.asked) == 2  # then its breaker is open
    assert ("reranker", True) in world.observed.searches
    assert world.observed.states[-1] == ("reranker", "open")


def test_ties_go_by_passage_id() -> None:
    passages = tuple(
        ScoredPassage(Passage(name, name, "t"), rank, 1.0) for rank, name in enumerate("zay", 1)
    )
    assert [hit.passage.passage_id for hit in by_score(passages, [1, 2, 1])] == ["a", "y", "z"]
