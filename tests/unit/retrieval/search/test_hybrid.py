from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.concurrency import gather
from service.core.domain import Passage, ScoredPassage
from service.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
)
from service.core.settings import RetrievalSettings
from service.retrieval.base import SearchRequest
from service.retrieval.embedding.contract import HASHING, Vector
from service.retrieval.search import guard, hybrid
from service.retrieval.search.guard import Guard
from service.retrieval.search.hybrid import (
    HybridRetriever,
    QueryEmbedding,
    SnapshotRetriever,
    combined,
    fuse,
    widened,
    z_scores,
)
from service.retrieval.search.reranking import Reranking
from tests.support.observed import Observed
from tests.unit.retrieval.worlds import CountingEmbedder, FakeStore, collection_of

# an embedder on a server has no more time than a store
BRISK: dict[str, Any] = {"timeout_s": 1.0, "embedding": {"url": "http://embedder/v1"}}


@pytest.fixture(autouse=True)
def _no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "RETRIES", 0)


class World:
    def __init__(
        self,
        *,
        incomplete: bool = False,
        reranking: Reranking | None = None,
        **settings: Any,
    ) -> None:
        self.bm25 = FakeStore("tantivy", ["a", "b"])
        self.dense = FakeStore("qdrant_edge", ["b", "c"])
        self.embedder = CountingEmbedder()
        self.observed = Observed()
        self.catalog = collection_of(self.bm25, self.dense, incomplete=incomplete)
        self.retriever = HybridRetriever(
            self.catalog,
            self.embedder,
            RetrievalSettings(**{**BRISK, **settings}),
            self.observed,
            reranking,
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
    assert await world.ask() == (["a", "b", "c"], ())
    assert sorted(world.observed.searches) == [
        ("embedding", False), ("qdrant_edge", False), ("tantivy", False),
    ]  # fmt: skip
    assert world.bm25.queries[0].top_k == 30
    assert len(world.dense.queries[0].vector) == 384


async def test_both_sides_are_asked_at_once() -> None:
    world = World()
    world.bm25.company = world.dense.company = asyncio.Barrier(2)
    assert await world.ask() == (["a", "b", "c"], ())


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
    assert (store.backend, True) in world.observed.searches
    with pytest.raises(RetrievalFailure, match=store.backend):
        await world.ask(out)
    assert await world.ask("dense" if out == "bm25" else "bm25") == (rest, ())


async def test_both_sides_out_names_both() -> None:
    world = World()
    world.bm25.breaks()
    world.dense.delay_s = 5
    with pytest.raises(
        RetrievalFailure, match=r"bm25 is unavailable: tantivy broke; dense is unavailable: .* 1 s"
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
    assert ("embedding", True) in world.observed.searches


async def test_vectors_of_another_model_are_not_searched() -> None:
    world = World()
    world.embedder.contract = HASHING.model_copy(update={"query_prefix": "query: "})
    assert await world.ask() == (["a", "b"], ("dense",))
    assert world.dense.queries == []
    with pytest.raises(
        RetrievalFailure, match="query_prefix is '', but the settings say 'query: '"
    ):
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
    world = World(timeout_s=60)
    world.bm25.delay_s = world.dense.delay_s = 60
    started = time.perf_counter()
    with anyio.move_on_after(0.02):
        await world.ask()
    assert time.perf_counter() - started < 30


async def test_concurrent_questions_are_embedded_together_and_do_not_mix() -> None:
    world = World()
    requests = [SearchRequest(query, 2, "c") for query in ("one", "two", "one")]
    requests.insert(1, SearchRequest("three", 1, "c", "dense"))
    requests.append(SearchRequest("four", 0, "c"))
    results = await gather([partial(world.retriever.search, request) for request in requests])
    assert [len(result.passages) for result in results] == [2, 1, 2, 2, 0]
    assert results[0] == results[2] == results[3]
    assert len(world.embedder.queries) == 1
    assert sorted(text for batch in world.embedder.queries for text in batch) == [
        "one",
        "one",
        "three",
        "two",
    ]
    assert [each.query for each in world.bm25.queries] == ["one", "two", "one"]
    assert len(world.dense.queries) == 4
    world.dense.breaks()
    calls = [partial(world.retriever.search, requests[index]) for index in (0, 2)]
    assert [result.missing for result in await gather(calls)] == [("dense",), ("dense",)]


async def test_a_blank_query_finds_nothing_and_asks_nobody() -> None:
    world = World()
    assert await world.ask(query=" \n") == ([], ())
    assert world.bm25.queries == []


class BridgeStore(FakeStore):
    """Finds `second` only for a query that names what the best passage is about."""

    async def search(self, query: SearchRequest) -> list[ScoredPassage]:
        found = await super().search(query)
        about = [ScoredPassage(Passage("second", "", ""), 1, 9.0)]
        return about if query.query.startswith("q A: ") else found


@pytest.mark.parametrize(
    ("top_k", "fields", "widened"),
    [
        (9, {}, False),
        (10, {}, True),
        (10, {"widened": False}, False),
        (10, {"retriever": "bm25"}, False),
    ],
)
async def test_a_long_list_is_searched_for_once_more_with_the_best_passage(
    top_k: int, fields: dict[str, Any], widened: bool
) -> None:
    world = World()
    names = [*"abcdefghijkl"]
    world.catalog.only.bm25 = bm25 = BridgeStore("tantivy", names)
    world.catalog.only.dense = BridgeStore("qdrant_edge", names)
    found, missing = await world.ask(**{"top_k": top_k, "widened": True, **fields})
    expected = [*"abc", "second", *"defghijkl"] if widened else names
    assert (found, missing) == (expected[:top_k], ())
    assert [each.query[:4] for each in bm25.queries] == ["q", "q A:"][: 1 + widened]


class FailsTheSecondTime(FakeStore):
    async def search(self, query: SearchRequest) -> list[ScoredPassage]:
        if self.queries:
            self.breaks()
        return await super().search(query)


@pytest.mark.parametrize("dense", [FakeStore, FailsTheSecondTime])
async def test_a_side_that_the_second_search_loses_is_named_unless_both_are(
    dense: type[FakeStore],
) -> None:
    world = World()
    names = [*"abcdefghijkl"]
    world.catalog.only.bm25 = FailsTheSecondTime("tantivy", names)
    world.catalog.only.dense = dense("qdrant_edge", names)
    missing = ("bm25",) if dense is FakeStore else ()
    assert await world.ask(top_k=10, widened=True) == (names[:10], missing)


def hits(*found: tuple[str, str, float]) -> list[ScoredPassage]:
    """Passages with a title (also their id), a text and a score, best first."""
    return [
        ScoredPassage(Passage(title, title, text), rank, score)
        for rank, (title, text, score) in enumerate(found, 1)
    ]


def test_two_lists_are_one_by_the_better_score_of_each_passage() -> None:
    first = hits(("a", "", 2.0), ("b", "", 1.0), ("c", "", 0.5), ("d", "", -1.0))
    second = hits(("x", "", 3.0), ("d", "", 0.7), ("a", "", -1.0))
    found = combined(first, second, 4)
    assert [(hit.passage.passage_id, hit.rank, hit.score) for hit in found] == [
        ("a", 1, 2.0), ("x", 2, 2.0), ("b", 3, 1.0), ("d", 4, 0.7),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("title", "text", "named"),
    [
        ("The Wall (album)", "Waters wrote the wall, in 1979.", True),
        ("Roger Waters", "An album by roger WATERS", True),
        ("Privilege", "an album called Privilege", True),
        ("Privilege", "it is a privilege", False),
        ("Wall", "Walls", False),
        ("Up", "Up is a film", False),
        ("", "", False),
        ("a", "a a", False),
    ],
)
def test_a_passage_gains_whose_title_a_leading_one_names(
    title: str, text: str, named: bool
) -> None:
    first = hits(("a", text, 1.5), ("b", "", 0.9), (title, title, -1.0))
    assert combined(first, [], 2)[1].passage.title == (title if named else "b")


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("One. Two. Three.", "q T: One. Two. "),
        ("", "q T: "),
        ("word " * 200, f"q T: {'word ' * 100}"),
    ],
)
def test_a_query_is_widened_by_the_first_sentences(text: str, query: str) -> None:
    assert widened("q", Passage("1", "T", text)) == query


# What the searches of one question share.


class Question(World):
    def __init__(self) -> None:
        super().__init__()
        self.bm25.ids, self.dense.ids = ["a"], ["b"]

    def question(self) -> SnapshotRetriever:
        return SnapshotRetriever(self.retriever)

    def breaks(self) -> None:
        self.dense.failure = BackendUnavailable("out")


def request(**fields: object) -> SearchRequest:
    return SearchRequest(**{"query": "q", "top_k": 2, "collection": "c", **fields})  # type: ignore[arg-type]


async def test_a_side_that_failed_is_not_asked_again_in_this_question() -> None:
    world = Question()
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
    world = Question()
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


class Gated(CountingEmbedder):
    """Embeds when the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.second = anyio.Event()

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        vectors = await super().embed_queries(texts)
        if len(self.queries) == 2:
            self.second.set()
        await self.gate.wait()
        return vectors


def opened(
    embedder: CountingEmbedder, observed: Observed | None = None, window_s: float = 0.05
) -> QueryEmbedding:
    settings, observed = RetrievalSettings(), observed or Observed()
    with mock.patch.multiple(hybrid, BATCH=3, WINDOW_S=window_s):
        return QueryEmbedding(embedder, Guard("embedding", settings, observed), observed)


async def embed(embedding: QueryEmbedding, *texts: str) -> list[list[float]]:
    """In one turn of the event loop."""
    calls = [partial(embedding.vector, text, math.inf) for text in texts]
    return [list(vector) for vector in await gather(calls)]


async def test_vectors_are_the_embedders_in_order_and_remembered() -> None:
    embedder = CountingEmbedder()
    embedding = opened(embedder)
    first = await embed(embedding, "volcano", "opera")
    assert first[0] != first[1]
    expected = await CountingEmbedder().embed_queries(["volcano", "opera"])
    assert first[0] == pytest.approx(expected[0], abs=1e-6)
    assert await embed(embedding, "opera", "volcano") == [first[1], first[0]]
    assert embedder.queries == [["volcano", "opera"]]


async def test_the_least_recently_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, observed = CountingEmbedder(), Observed()
    embedding = opened(embedder, observed=observed)
    monkeypatch.setattr(hybrid, "REMEMBERED", 2)
    for text in "abacabc":
        await embed(embedding, text)
    assert embedder.queries == [["a"], ["b"], ["c"], ["b"], ["c"]]
    assert observed.asked == [False, False, True, False, True, False, False]


async def test_concurrent_questions_go_together_up_to_a_batch() -> None:
    embedder = CountingEmbedder()
    embedding = opened(embedder)
    await gather([lambda text=text: embed(embedding, text) for text in "abcd"])  # type: ignore[misc]
    assert sorted(map(len, embedder.queries)) == [1, 3]


async def test_those_that_come_while_others_are_embedded_wait_for_company() -> None:
    embedder = Gated()
    embedding = opened(embedder, window_s=1.0)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for text in "abc":
                group.start_soon(embed, embedding, text)
                # a turn or more for each: without the window each would be a batch of its own
                await anyio.sleep(0.002)
            await embedder.second.wait()
            assert embedder.queries == [["a"], ["b", "c"]]
            embedder.gate.set()


# What a fusion of two rankings keeps, and in which order.


def scored(text: str = "t", **scores: float) -> list[ScoredPassage]:
    """A ranking by score, ties by id, as a store gives it."""
    order = sorted(scores, key=lambda name: (-scores[name], name))
    return [
        ScoredPassage(Passage(name, name, text), rank, scores[name])
        for rank, name in enumerate(order, 1)
    ]


def ids(hits: Any) -> list[str]:
    return [hit.passage.passage_id for hit in hits]


RANKING = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(-50, 50), max_size=6).map(
    lambda scores: scored(**scores)
)


@pytest.mark.parametrize(("weight", "order"), [(0.0, "abc"), (0.5, "bac"), (1.0, "bca")])
def test_weights_move_the_order(weight: float, order: str) -> None:
    bm25, dense = scored(a=20, b=15, c=0), scored(b=0.9, c=0.8, a=0.5)
    assert ids(fuse(bm25, dense, weight, 3)) == list(order)


def test_what_a_ranking_lacks_counts_as_its_worst_and_bm25_is_believed() -> None:
    fused = fuse(scored("bm25", a=3, b=1), scored("dense", b=5, c=3), 0.5, 9)
    assert {hit.passage.passage_id: hit.score for hit in fused} == {"a": 0, "b": 0, "c": -1}
    assert [hit.passage.text for hit in fused] == ["bm25", "bm25", "dense"]
    assert fuse([], [], 0.5, 3) == ()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_z_scores_are_in_standard_deviations(scores: list[float]) -> None:
    mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
    made = z_scores(scores)
    if deviation > 1e-9 * max(map(abs, scores)):  # else rounding decides
        expected = [(score - mean) / deviation for score in scores]
        assert made == pytest.approx(expected, abs=1e-6)
    assert max(map(abs, made)) <= len(scores)
    assert z_scores([4.0, 4.0]) == [0.0, 0.0]


@given(one=RANKING, other=RANKING)
def test_every_passage_comes_once_by_score_then_id_whichever_side_found_it(
    one: Any, other: Any
) -> None:
    fused = fuse(one, other, 0.5, 99)
    assert sorted(ids(fused)) == sorted({*ids(one), *ids(other)})
    order = [(-hit.score, hit.passage.passage_id) for hit in fused]
    assert order == sorted(order)
    assert [hit.rank for hit in fused] == list(range(1, len(fused) + 1))
    assert fuse(other, one, 0.5, 99) == fused
    assert fuse(one, other, 0.5, 2) == fused[:2]
