"""What the searches of one question share."""

from __future__ import annotations

import pytest

from service.core.errors import BackendUnavailable, RetrievalFailure
from service.core.settings import RetrievalSettings
from service.retrieval.base import SearchRequest
from service.retrieval.search import guard
from service.retrieval.search.hybrid import HybridRetriever, SnapshotRetriever
from tests.unit.retrieval.worlds import CountingEmbedder, FakeCatalog, FakeStore

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "RETRIES", 0)


class World:
    def __init__(self) -> None:
        self.bm25, self.dense = FakeStore("elasticsearch", ["a"]), FakeStore("qdrant", ["b"])
        self.retriever = HybridRetriever(
            FakeCatalog(self.bm25, self.dense), CountingEmbedder(), RetrievalSettings()
        )

    def question(self) -> SnapshotRetriever:
        return SnapshotRetriever(self.retriever)

    def breaks(self) -> None:
        self.dense.failure = BackendUnavailable("out")


def request(**fields: object) -> SearchRequest:
    return SearchRequest(**{"query": "q", "top_k": 2, "collection": "c", **fields})  # type: ignore[arg-type]


async def test_a_side_that_failed_is_not_asked_again_in_this_question() -> None:
    world = World()
    world.breaks()
    async with world.question() as held:
        for _ in range(3):
            assert (await held.search(request())).missing == ("dense",)
        assert len(world.dense.queries) == 1
        assert len(world.bm25.queries) == 3
        with pytest.raises(RetrievalFailure, match="failed earlier in this question"):
            await held.search(request(retriever="dense"))
        assert (await held.search(request(retriever="bm25"))).missing == ()
        assert (await held.search(request(query="r"))).missing == ("dense",)
        assert len(world.dense.queries) == 1


async def test_a_side_that_failed_is_asked_again_where_the_other_one_fails() -> None:
    world = World()
    world.breaks()
    async with world.question() as held:
        assert (await held.search(request())).missing == ("dense",)
        world.dense.failure, world.bm25.failure = None, BackendUnavailable("out")
        found = await held.search(request())
        assert ([hit.passage.passage_id for hit in found.passages], found.missing) == (
            ["b"], ("bm25",),
        )  # fmt: skip
        assert (await held.search(request())).missing == ("bm25",)
        assert len(world.bm25.queries) == 2
        world.breaks()
        with pytest.raises(RetrievalFailure):
            await held.search(request())


async def test_the_next_question_asks_it_again() -> None:
    world = World()
    world.breaks()
    async with world.question() as held:
        await held.search(request())
    world.dense.failure = None
    async with world.question() as held:
        assert (await held.search(request())).missing == ()
