"""The `Retriever` over a BM25 store and a dense store, searched concurrently and fused.

If one side is unavailable, the other is used, and the result names what is missing. If both are, or
the only one requested: RetrievalFailure (METHODS.md §6 #5).
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from service.core.concurrency import gather
from service.core.errors import InvalidRequest, RetrievalFailure
from service.core.settings import RetrievalSettings
from service.retrieval.base import (
    Catalog,
    Filter,
    OpenCollection,
    Permit,
    SearchRequest,
    SearchResult,
    SideName,
    StoreQuery,
)
from service.retrieval.embedding import Embedder
from service.retrieval.reranking.ordering import Reranking
from service.retrieval.search.filters import unknown_fields
from service.retrieval.search.fusion import Ranking, fuse
from service.retrieval.search.observer import SearchObserver, Silent
from service.retrieval.search.sides import SideResult, Sides

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
        if not request.query.strip() or request.top_k < 1:
            return NOTHING
        async with self._catalog.lend(request.collection) as stores:
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
