"""The `Retriever` over a BM25 store and a dense store, searched concurrently and fused.

If one side is unavailable, the other is used, and the result names what is missing. If both are, or
the only one requested: RetrievalFailure (METHODS.md §6 #5).
"""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

import anyio
import structlog

from service.core.concurrency import gather
from service.core.domain import RetrieverName, ScoredPassage
from service.core.errors import InvalidRequest, RetrievalFailure, RevelatorError
from service.core.settings import RetrievalSettings
from service.retrieval.base import (
    Catalog,
    Filter,
    OpenCollection,
    Permit,
    SearchRequest,
    SearchResult,
    SearchStore,
    SideName,
    StoreQuery,
)
from service.retrieval.embedding import Embedder, differences
from service.retrieval.search.fusion import Ranking, fuse
from service.retrieval.search.guard import Guard, SearchObserver, Silent
from service.retrieval.stores.base import Batcher
from service.retrieval.stores.records import unknown_fields

if TYPE_CHECKING:
    from service.retrieval.search.reranking import Reranking

REMEMBERED: Final = 1000  # queries
BATCH: Final = 32
WINDOW_S: Final = 0.002  # seconds that a query waits for others while the embedder is busy

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
QueryVector = Sequence[float]  # stored as 32-bit floats, an eighth of a list's memory


class Cache(Generic[Key, Value]):
    """A cache of at most `entries`, which evicts the least recently used.

    Keys contain everything that a value depends on, so entries never become stale.
    """

    def __init__(self, entries: int, observer: SearchObserver) -> None:
        self._entries = entries
        self._observer = observer
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        self._observer.cache(found is not None)
        return found

    def put(self, key: Key, value: Value) -> None:
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._entries:
            self._kept.popitem(last=False)


class QueryEmbedding:
    """Embeds queries in batches: those of one turn of the event loop, and while a batch is being
    embedded, those of the next WINDOW_S."""

    def __init__(
        self,
        embedder: Embedder,
        guard: Guard,
        observer: SearchObserver,
    ) -> None:
        self._embedder = embedder
        self._guard = guard
        self._cache = Cache[tuple[str, str], QueryVector](REMEMBERED, observer)
        self._batcher = Batcher[str, QueryVector](self._embed, BATCH, WINDOW_S)

    async def vector(self, text: str, until: float, probe: bool = False) -> QueryVector:
        """Return the vector of a query. A `probe` caches nothing. Raises as `Guard.call` does."""
        if probe:
            return (await self._guard.probe(partial(self._embed, [text]), until))[0]
        key = self._embedder.contract.model, text
        known = self._cache.get(key)
        if known is None:
            known = await self._guard.call(partial(self._batcher.ask, text), until)
            self._cache.put(key, known)
        return known

    async def _embed(self, texts: Sequence[str]) -> list[QueryVector]:
        return [array("f", vector) for vector in await self._embedder.embed_queries(texts)]


SPARE: Final = 32  # candidates more, of a store whose passages BM25 may not hold

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SideResult:
    """The result of one side: its ranking, or why it is unavailable."""

    hits: Sequence[ScoredPassage] = ()
    failure: str | None = None


class Sides:
    """Searches stores and `embedder`, each through the guard of its backend.

    A side without a result by `until` (of `time.monotonic`) is omitted. A `probe` bypasses the
    circuit breakers.
    """

    def __init__(
        self, embedder: Embedder, settings: RetrievalSettings, observer: SearchObserver
    ) -> None:
        self._embedder = embedder
        self._settings = settings
        self._observer = observer
        self._guards: dict[str, Guard] = {}
        self.answered = -math.inf  # when a store last answered a question, by `time.monotonic`
        guard = self._guard("embedding")
        self._embedding = QueryEmbedding(embedder, guard, observer)

    async def bm25(
        self, query: StoreQuery, stores: OpenCollection, until: float, probe: bool
    ) -> SideResult:
        try:
            return SideResult(await self._ask(stores.bm25, query, until, probe))
        except RevelatorError as error:
            return SideResult(failure=error.detail)

    async def dense(
        self, query: StoreQuery, stores: OpenCollection, until: float, probe: bool
    ) -> SideResult:
        """Search the dense side. Refuses a collection whose vectors are not comparable to the
        embedder's."""
        if stores.embedding != self._embedder.contract:
            apart = differences(stores.embedding, self._embedder.contract)
            _log.warning("vectors_not_comparable", reason=apart)
            return SideResult(
                failure=f"the vectors were made with other embedding settings: {apart}"
            )
        try:
            vector = await self._embedding.vector(query.text, until, probe)
            more = SPARE if stores.incomplete else 0
            asked = replace(query, vector=vector, top_k=query.top_k + more)
            found = await self._ask(stores.dense, asked, until, probe)
            return SideResult((await stores.held(found))[: query.top_k])
        except RevelatorError as error:
            return SideResult(failure=error.detail)

    async def aclose(self) -> None:
        for guard in self._guards.values():
            await guard.aclose()

    async def _ask(
        self, store: SearchStore, query: StoreQuery, until: float, probe: bool
    ) -> Sequence[ScoredPassage]:
        guard, search = self._guard(store.backend), partial(store.search, query)
        if probe:
            return await guard.probe(search, until)
        found = await guard.call(search, until)
        self.answered = time.monotonic()
        return found

    def _guard(self, backend: str) -> Guard:
        guard = self._guards.get(backend)
        if guard is None:
            guard = self._guards[backend] = Guard(backend, self._settings, self._observer)
        return guard


# Each side returns more than top_k, because a passage that both sides find may be below the cut of
# one.
DEPTH_FACTOR = 3
LEAST_DEPTH = 30

INCOMPLETE = "index-incomplete"
LOST_BEFORE = "it failed earlier in this question and is not searched again"
NOTHING = SearchResult(())


class HybridRetriever:
    """Searches both sides. Calls of the stores and of `embedder` are bounded by the settings
    (`Guard`).
    """

    def __init__(
        self,
        catalog: Catalog,
        embedder: Embedder,
        settings: RetrievalSettings,
        observer: SearchObserver | None = None,
        reranking: Reranking | None = None,
    ) -> None:
        observer = observer or Silent()
        self._catalog = catalog
        self._embedder = embedder
        self._settings = settings
        self._sides = Sides(embedder, settings, observer)
        self._reranking = reranking

    async def check_request(self, collection: str | None, filter: Filter, permit: Permit) -> str:
        if collection is not None:
            permit(collection)
        name = await self._catalog.resolve(collection)
        permit(name)
        if filter:
            known = await self._catalog.metadata_fields(name)
            unknown = unknown_fields(filter, known)
            if unknown:
                raise InvalidRequest(
                    f"collection {name!r} has no metadata field {', '.join(map(repr, unknown))}; "
                    f"its fields: {', '.join(known) or 'none'}"
                )
        return name

    async def search(self, request: SearchRequest) -> SearchResult:
        async with self.lend(request.collection) as stores:
            return await self.search_in(stores, request)

    def lend(self, name: str) -> AbstractAsyncContextManager[OpenCollection]:
        """Lend the stores of a collection for several searches."""
        return self._catalog.lend(name)

    async def search_in(self, stores: OpenCollection, request: SearchRequest) -> SearchResult:
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
        return time.monotonic() - self._sides.answered < seconds

    async def aclose(self) -> None:
        """Close the catalog and with it every store."""
        await self._sides.aclose()
        await self._catalog.aclose()

    async def _one(
        self, request: SearchRequest, stores: OpenCollection, until: float
    ) -> SearchResult:
        name: SideName = "bm25" if request.retriever == "bm25" else "dense"
        side = await self._side(name, request, request.top_k, stores, until)
        if side.failure is not None:
            raise RetrievalFailure(f"{name} is unavailable: {side.failure}")
        missing = _incomplete(stores)
        return SearchResult(tuple(side.hits), missing)

    async def _both(
        self, request: SearchRequest, stores: OpenCollection, until: float
    ) -> SearchResult:
        depth = self._depth(request)
        bm25, dense = await gather(
            [
                partial(self._side, "bm25", request, depth, stores, until),
                partial(self._side, "dense", request, depth, stores, until),
            ]
        )
        missing = (*_unavailable(bm25, dense), *_incomplete(stores))
        return await self._fused(request, bm25.hits, dense.hits, missing, until)

    async def _side(
        self,
        name: SideName,
        request: SearchRequest,
        top_k: int,
        stores: OpenCollection,
        until: float,
    ) -> SideResult:
        """Return the result of one side. The dense side starts one turn of the event loop later, so
        that BM25's request to a server is sent before the 0.1 ms of dense preparation.
        """
        if name in request.without:
            return SideResult(failure=LOST_BEFORE)
        if name == "dense":
            await asyncio.sleep(0)
        query = StoreQuery(request.query, top_k, (), request.filter, request.exclude, request.shape)
        ask = self._sides.bm25 if name == "bm25" else self._sides.dense
        return await ask(query, stores, until, request.probe)

    async def _fused(
        self,
        request: SearchRequest,
        bm25: Ranking,
        dense: Ranking,
        missing: tuple[str, ...],
        until: float,
    ) -> SearchResult:
        settings, top_k = self._settings, request.top_k
        if self._reranking is None or request.probe:
            return SearchResult(fuse(bm25, dense, settings, top_k), missing)
        fused = fuse(bm25, dense, settings, max(top_k, self._reranking.top_n))
        passages = await self._reranking.order(request.query, fused, top_k, until)
        return SearchResult(passages, missing)

    def _depth(self, request: SearchRequest) -> int:
        wanted = self._reranking.top_n if self._reranking else 0
        return max(DEPTH_FACTOR * request.top_k, LEAST_DEPTH, wanted)


def _unavailable(bm25: SideResult, dense: SideResult) -> tuple[str, ...]:
    """Return the names of the unavailable sides. Raises RetrievalFailure if both are."""
    sides = {"bm25": bm25, "dense": dense}
    failures = {name: side.failure for name, side in sides.items() if side.failure is not None}
    if len(failures) == len(sides):
        raise RetrievalFailure(
            "; ".join(f"{name} is unavailable: {why}" for name, why in failures.items())
        )
    return tuple(failures)


def _incomplete(stores: OpenCollection) -> tuple[str, ...]:
    return (INCOMPLETE,) if stores.incomplete else ()


# The snapshot that all searches of one question share: one generation of each collection, also if
# a re-index switches to another one meanwhile, and the sides that failed.

SIDES: Final[tuple[SideName, ...]] = ("bm25", "dense")
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
        self._lent: dict[str, OpenCollection] = {}
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

    async def check_request(self, collection: str | None, filter: Filter, permit: Permit) -> str:
        return await self._retriever.check_request(collection, filter, permit)

    async def aclose(self) -> None:
        """Do nothing: other questions use the retriever too."""
