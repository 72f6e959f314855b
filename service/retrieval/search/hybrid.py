"""The `Retriever` over a BM25 store and a dense store, searched concurrently and fused.

If one side is unavailable, the other is used, and the result names what is missing. If both are, or
the only one requested: RetrievalFailure (METHODS.md §6 #5).
"""

from __future__ import annotations

import math
import re
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Final, Self

import anyio
import structlog

from service.core.concurrency import Batcher, gather
from service.core.domain import Passage, RetrieverName, ScoredPassage
from service.core.errors import RetrievalFailure, RevelatorError
from service.core.metrics import Metrics
from service.core.settings import RetrievalSettings
from service.retrieval.base import (
    SIDES,
    SearchRequest,
    SearchResult,
    SearchStore,
    SideName,
    may_see,
    ranked,
)
from service.retrieval.embedding.contract import Embedder, differences, finite
from service.retrieval.search.guard import Guard
from service.text.sentences import sentences

if TYPE_CHECKING:
    from service.retrieval.collections.catalog import Collections
    from service.retrieval.collections.lifecycle import Collection
    from service.retrieval.search.reranking import Reranking

REMEMBERED: Final = 1000  # queries
BATCH: Final = 32
WINDOW_S: Final = 0.002  # seconds that a query waits for others while the embedder is busy

SPARE: Final = 32  # candidates more, of a store whose passages BM25 may not hold

Ranking = Sequence[ScoredPassage]
QueryVector = Sequence[float]  # stored as 32-bit floats, an eighth of a list's memory

_log = structlog.get_logger(__name__)


class QueryEmbedding:
    """Embeds queries in batches: those of one turn of the event loop, and while a batch is being
    embedded, those of the next WINDOW_S. The vectors of the latest queries are remembered."""

    def __init__(self, embedder: Embedder, guard: Guard, metrics: Metrics) -> None:
        self._embedder = embedder
        self._guard = guard
        self._metrics = metrics
        self._known: OrderedDict[str, QueryVector] = OrderedDict()
        self._batcher = Batcher[str, QueryVector](self._embed, BATCH, WINDOW_S)

    async def vector(self, text: str, until: float, probe: bool = False) -> QueryVector:
        """Return the vector of a query. A `probe` caches nothing. Raises as `Guard.call` does."""
        if probe:
            return (await self._guard.probe(partial(self._embed, [text]), until))[0]
        vector = self._known.get(text)
        outcome = "miss" if vector is None else "hit"
        self._metrics.count("cache_requests_total", "query_embeddings", outcome)
        if vector is None:
            vector = await self._guard.call(partial(self._batcher.ask, text), until)
            self._known[text] = vector
        self._known.move_to_end(text)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return vector

    async def _embed(self, texts: Sequence[str]) -> list[QueryVector]:
        vectors = finite(await self._embedder.embed_queries(texts))
        return [array("f", vector) for vector in vectors]


# Each side returns more than top_k, because a passage that both sides find may be below the cut of
# one.
DEPTH_FACTOR = 3
LEAST_DEPTH = 30

LEADING: Final = 10  # passages of a first search whose texts name others
SENTENCES: Final = 2  # of the best passage that widen the query
LONGEST: Final = 500  # characters of them
NAMED: Final = 2.0  # standard deviations that a passage gains whose title a leading one names

SHORTEST: Final = 5  # characters of a title that can be named, with a space on either side
_IN_BRACKETS: Final = re.compile(r" \([^()]*\)$")  # what tells things of one name apart
_WORD: Final = re.compile(r"\w+")

INCOMPLETE = "index-incomplete"
LOST_BEFORE = "it failed earlier in this question and is not searched again"
NOTHING = SearchResult(())


class HybridRetriever:
    """Searches both sides: stores and `embedder`, each through the `Guard` of its backend, whose
    limits are in the settings. A side without a result in time is omitted.
    """

    def __init__(
        self,
        catalog: Collections,
        embedder: Embedder,
        settings: RetrievalSettings,
        metrics: Metrics | None = None,
        reranking: Reranking | None = None,
    ) -> None:
        self._catalog = catalog
        self._embedder = embedder
        self._settings = settings
        self._metrics = metrics or Metrics()
        self._reranking = reranking
        self._guards: dict[str, Guard] = {}
        self._embedding = QueryEmbedding(embedder, self._guard("embedding"), self._metrics)
        self._answered = -math.inf  # when a store last answered a question, by `time.monotonic`

    async def search(self, request: SearchRequest) -> SearchResult:
        async with self.lend(request.collection) as stores:
            return await self.search_in(stores, request)

    def lend(self, name: str) -> AbstractAsyncContextManager[Collection]:
        """Lend the stores of a collection for several searches."""
        return self._catalog.lend(name)

    async def search_in(self, stores: Collection, request: SearchRequest) -> SearchResult:
        """Search stores that are lent."""
        if not request.query.strip() or request.top_k < 1:
            return NOTHING
        until = time.monotonic() + request.within_s
        if request.retriever == "hybrid":
            return await self._both(request, stores, until)
        return await self._one(request, stores, until)

    async def warm(self) -> None:
        """Open the default collection and load the models, so that no question waits for them."""
        name = await self._catalog.resolve(None)
        async with self._catalog.lend(name):
            if self._embedder.problem() is None:
                await self._embedder.embed_queries(["warm"])

    def answered_within(self, seconds: float) -> bool:
        """Whether a store has answered a question in the last `seconds`. Probes do not count."""
        return time.monotonic() - self._answered < seconds

    async def aclose(self) -> None:
        """Close the catalog and with it every store."""
        for guard in self._guards.values():
            await guard.aclose()
        await self._catalog.aclose()

    async def _one(self, request: SearchRequest, stores: Collection, until: float) -> SearchResult:
        (name,) = SIDES_OF[request.retriever]
        hits = await self._side(name, request, stores, until)
        if isinstance(hits, str):
            raise RetrievalFailure(f"{name} is unavailable: {hits}")
        return SearchResult(tuple(hits), _incomplete(stores))

    async def _both(self, request: SearchRequest, stores: Collection, until: float) -> SearchResult:
        """Search both sides. If the search is `widened`, search once more with what the best
        passage is about: of a question of two steps, that finds the second passage."""
        found = await self._once(request, stores, until)
        first, top_k = found.passages, request.top_k
        wide = request.widened and top_k >= LEADING and self._reranking is None
        if wide and first and not found.missing:
            query = widened(request.query, first[0].passage)
            try:
                second = await self._once(replace(request, query=query), stores, until)
                return SearchResult(combined(first, second.passages, top_k), second.missing)
            except RetrievalFailure:
                pass
        return replace(found, passages=first[:top_k])

    async def _once(self, request: SearchRequest, stores: Collection, until: float) -> SearchResult:
        """Search both sides once. Returns more than `top_k` passages unless they are reranked."""
        reranking = None if request.probe else self._reranking
        depth = max(DEPTH_FACTOR * request.top_k, LEAST_DEPTH)
        least = max(request.top_k, reranking.top_n) if reranking else depth
        deep = replace(request, top_k=max(depth, least))
        found = await gather([partial(self._side, name, deep, stores, until) for name in SIDES])
        sides = dict(zip(SIDES, found, strict=True))
        failures = {name: hits for name, hits in sides.items() if isinstance(hits, str)}
        if len(failures) == len(sides):
            raise RetrievalFailure(
                "; ".join(f"{name} is unavailable: {why}" for name, why in failures.items())
            )
        bm25, dense = (() if isinstance(hits, str) else hits for hits in found)
        passages = fuse(bm25, dense, self._settings.dense_weight, least)
        if reranking is not None:
            passages = await reranking.order(request.query, passages, request.top_k, until)
        return SearchResult(passages, (*failures, *_incomplete(stores)))

    async def _side(
        self, name: SideName, request: SearchRequest, stores: Collection, until: float
    ) -> Ranking | str:
        """Return the ranking of one side, or why it is unavailable."""
        if name in request.without:
            return LOST_BEFORE
        try:
            if name == "bm25":
                found = await self._ask(stores.bm25, request, until)
            else:
                found = await self._dense(request, stores, until)
        except RevelatorError as error:
            return error.detail
        # The stores were told not to find others; this does not depend on how they index.
        seen = [hit for hit in found if may_see(request.principals, hit.passage.metadata)]
        if len(seen) == len(found):
            return found
        return [replace(hit, rank=rank) for rank, hit in enumerate(seen, 1)]

    async def _dense(self, request: SearchRequest, stores: Collection, until: float) -> Ranking:
        """Search the dense side. Refuses a collection whose vectors are not comparable to the
        embedder's."""
        if stores.manifest.embedding != self._embedder.contract:
            apart = differences(stores.manifest.embedding, self._embedder.contract)
            _log.warning("vectors_not_comparable", reason=apart)
            raise RetrievalFailure(f"the vectors were made with other embedding settings: {apart}")
        vector = await self._embedding.vector(request.query, until, request.probe)
        more = SPARE if stores.incomplete else 0
        asked = replace(request, vector=vector, top_k=request.top_k + more)
        found = await self._ask(stores.dense, asked, until)
        return (await stores.held(found))[: request.top_k]

    async def _ask(self, store: SearchStore, request: SearchRequest, until: float) -> Ranking:
        guard, search = self._guard(store.backend), partial(store.search, request)
        if request.probe:
            return await guard.probe(search, until)
        found = await guard.call(search, until)
        self._answered = time.monotonic()
        return found

    def _guard(self, backend: str) -> Guard:
        guard = self._guards.get(backend)
        if guard is None:
            guard = self._guards[backend] = Guard(backend, self._settings, self._metrics)
        return guard


def fuse(
    bm25: Ranking, dense: Ranking, dense_weight: float, top_k: int
) -> tuple[ScoredPassage, ...]:
    """Fuse two rankings: return the best `top_k` by the weighted sum of the z-scores of each; BM25
    has what is left of the weight. Swapping the two does not change the order.

    A passage that is missing in a ranking gets the score of its worst one. Ties are ordered by
    passage id. Where rankings disagree on a passage's text, the first one that has it is believed.
    """
    found = {hit.passage.passage_id: hit.passage for hits in (dense, bm25) for hit in hits}
    scores = dict.fromkeys(found, 0.0)
    for hits, weight in ((bm25, 1.0 - dense_weight), (dense, dense_weight)):
        if not hits:
            continue
        normal = z_scores([hit.score for hit in hits])
        known = {hit.passage.passage_id: score for hit, score in zip(hits, normal, strict=True)}
        worst = min(normal)
        for passage_id in scores:
            scores[passage_id] += weight * known.get(passage_id, worst)
    return tuple(ranked((score, found[passage_id]) for passage_id, score in scores.items())[:top_k])


def z_scores(scores: Sequence[float]) -> list[float]:
    """Scale scores to mean 0 and standard deviation 1. All become 0 if they are equal."""
    mean, span = math.fsum(scores) / len(scores), max(scores) - min(scores)
    if not span:
        return [0.0] * len(scores)
    # statistics.pstdev computes with fractions, which takes nine times as long. The span keeps the
    # squares of close scores above zero.
    parts = [(score - mean) / span for score in scores]
    deviation = math.sqrt(math.fsum([part * part for part in parts]) / len(parts))
    return [part / deviation for part in parts]


def widened(query: str, best: Passage) -> str:
    """Return a query for what a passage is about and the query asks."""
    *_, (_, end) = [(0, 0), *islice(sentences(best.text), SENTENCES)]
    return f"{query} {best.title}: {best.text[: min(end, LONGEST)]}"


def combined(first: Ranking, second: Ranking, top_k: int) -> tuple[ScoredPassage, ...]:
    """Return the best `top_k` of two rankings, by the better score of each passage.

    A passage whose title is named in one of the leading passages gains `NAMED`: it is where they
    lead to. The first one stays the first. No score is higher than the one before it.
    """
    best: dict[str, ScoredPassage] = {}
    for hit in (*first, *second):
        known = best.setdefault(hit.passage.passage_id, hit)
        if hit.score > known.score:
            best[hit.passage.passage_id] = hit
    leading = [(hit.passage.title, *_spaced(hit.passage.text)) for hit in first[:LEADING]]
    worth = {
        passage_id: hit.score + NAMED * _is_named(hit.passage.title, leading)
        for passage_id, hit in best.items()
    }
    ordered = sorted(best, key=lambda passage_id: (-worth[passage_id], passage_id))
    chosen = list(dict.fromkeys([first[0].passage.passage_id, *ordered]))[:top_k]
    scores = accumulate(map(worth.__getitem__, chosen), min)
    return tuple(
        ScoredPassage(best[passage_id].passage, rank, score)
        for rank, (passage_id, score) in enumerate(zip(chosen, scores, strict=True), 1)
    )


def _is_named(title: str, texts: Sequence[tuple[str, str, str]]) -> bool:
    """Whether one of `texts`, each after its own title, names what another title is about. A single
    word must have the same case."""
    spelt, folded = _spaced(_IN_BRACKETS.sub("", title))
    if len(spelt) < SHORTEST:
        return False
    if spelt.count(" ") == 2:
        return any(spelt in text for its_title, text, _ in texts if its_title != title)
    return any(folded in text for its_title, _, text in texts if its_title != title)


def _spaced(text: str) -> tuple[str, str]:
    """Return the words of a text, each between spaces, as they are and case-folded."""
    spelt = f" {' '.join(_WORD.findall(text))} "
    return spelt, spelt.casefold()


def _incomplete(stores: Collection) -> tuple[str, ...]:
    return (INCOMPLETE,) if stores.incomplete else ()


# The snapshot that all searches of one question share: one generation of each collection, also if
# a re-index switches to another one meanwhile, and the sides that failed.

SIDES_OF: Final[dict[RetrieverName, tuple[SideName, ...]]] = {
    "bm25": ("bm25",),
    "dense": ("dense",),
    "hybrid": SIDES,
}


class SnapshotRetriever:
    """Searches with `retriever` for one question, inside `async with`.

    A collection is lent from its first search to the end, so that a question without searches opens
    none. A side that failed costs its time once, not once per search, unless the other one fails as
    well.
    """

    def __init__(self, retriever: HybridRetriever) -> None:
        self._retriever = retriever
        self._stack = AsyncExitStack()
        self._lock = anyio.Lock()
        self._lent: dict[str, Collection] = {}
        self._lost: dict[str, frozenset[SideName]] = {}  # by collection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def search(self, request: SearchRequest) -> SearchResult:
        name = request.collection
        async with self._lock:
            if name not in self._lent:
                lent = self._retriever.lend(name)
                self._lent[name] = await self._stack.enter_async_context(lent)
        search = partial(self._retriever.search_in, self._lent[name])
        lost = self._lost.get(name, frozenset())
        asked = replace(request, without=request.without | lost)
        try:
            result = await search(asked)
        except RetrievalFailure:
            self._lose(request, SIDES_OF[request.retriever])
            if request.retriever != "hybrid" or len(asked.without) != 1:
                raise
            # The side that was spared because it failed before may be back.
            failed = frozenset(SIDES) - asked.without
            result = await search(replace(asked, without=failed))
            self._lost[name] = failed
        self._lose(request, result.missing)
        return result

    def _lose(self, request: SearchRequest, missing: Sequence[str]) -> None:
        """Remember the sides that a search missed."""
        known = self._lost.get(request.collection, frozenset())
        self._lost[request.collection] = known | {side for side in SIDES if side in missing}
