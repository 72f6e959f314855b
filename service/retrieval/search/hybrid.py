"""The `Retriever` over a BM25 store and a dense store, searched concurrently and fused.

If one side is unavailable, the other is used, and the result names what is missing. If both are, or
the only one requested: RetrievalFailure (METHODS.md §6 #5).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

from service.core.concurrency import gather
from service.core.domain import RetrieverName, ScoredPassage
from service.core.errors import InvalidRequest, RetrievalFailure
from service.core.settings import RetrievalSettings
from service.retrieval.base import (
    Catalog,
    Filter,
    OpenCollection,
    SearchRequest,
    SearchResult,
    SideName,
    StoreQuery,
)
from service.retrieval.embedding import Embedder
from service.retrieval.reranking.ordering import Reranking
from service.retrieval.search.cache import Cache
from service.retrieval.search.filters import unknown_fields
from service.retrieval.search.fusion import Ranking, fuse
from service.retrieval.search.observer import SearchObserver, Silent
from service.retrieval.search.sides import Side, Sides

# Each side is asked for more than top_k: a passage both sides know of may stand below the cut of
# one of them.
DEPTH_FACTOR = 3
LEAST_DEPTH = 30

INCOMPLETE = "index-incomplete"
LOST_BEFORE = "it failed earlier in this question and is not searched again"
NOTHING = SearchResult(())

Requests = Sequence[SearchRequest]


class _Found(NamedTuple):
    """`whole`: nothing was out, so it may be remembered."""

    result: SearchResult
    whole: bool


class HybridRetriever:
    """Calls of the stores and of `embedder` are bounded as `settings` say (`Guard`)."""

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
        self._results = Cache[Hashable, SearchResult](
            "search_results", settings.cache.search_results, observer
        )
        self._reranking = reranking

    async def check_request(self, collection: str | None, filter: Filter) -> str:
        name = await self._catalog.resolve(collection)
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
        (result,) = await self.search_many([request])
        return result

    async def search_many(self, requests: Requests) -> list[SearchResult]:
        """Results in order. Those of one collection and retriever go together: one batch of
        embeddings, one request to each store. Any that fails cancels the others."""
        groups: dict[tuple[str, RetrieverName, frozenset[SideName], bool], list[int]] = {}
        for index, request in enumerate(requests):
            if request.query.strip() and request.top_k > 0:
                group = (request.collection, request.retriever, request.without, request.probe)
                groups.setdefault(group, []).append(index)
        calls = [
            partial(self._together, [requests[index] for index in indices])
            for indices in groups.values()
        ]
        found = await gather(calls)
        results = [NOTHING] * len(requests)
        for indices, own in zip(groups.values(), found, strict=True):
            for index, result in zip(indices, own, strict=True):
                results[index] = result
        return results

    async def warm(self, collection: str | None = None) -> None:
        """Open the collection and load the models, so that no question waits for them."""
        name = await self._catalog.resolve(collection)
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

    async def _together(self, requests: Requests) -> list[SearchResult]:
        """Of one group; what is remembered is not searched."""
        async with self._catalog.lend(requests[0].collection) as stores:
            keys = [_key(request, stores) for request in requests]
            known = [self._results.get(key) if key is not None else None for key in keys]
            absent = [index for index, result in enumerate(known) if result is None]
            if absent:
                fresh = await self._searched([requests[index] for index in absent], stores)
                for index, found in zip(absent, fresh, strict=True):
                    known[index] = found.result
                    if (key := keys[index]) is not None and found.whole:
                        self._results.put(key, found.result)
            return [result for result in known if result is not None]

    async def _searched(self, requests: Requests, stores: OpenCollection) -> list[_Found]:
        until = time.monotonic() + min(request.within_s for request in requests)
        if requests[0].retriever == "hybrid":
            return await self._both(requests, stores, until)
        return await self._one(requests, stores, until)

    async def _one(self, requests: Requests, stores: OpenCollection, until: float) -> list[_Found]:
        name: SideName = "bm25" if requests[0].retriever == "bm25" else "dense"
        queries = [_store_query(each, each.top_k) for each in requests]
        side = await self._side(name, requests[0], queries, stores, until)
        if side.failure is not None:
            raise RetrievalFailure(f"{name} is unavailable: {side.failure}")
        missing = _incomplete(stores)
        return [_Found(SearchResult(tuple(hits), missing), not missing) for hits in side.hits]

    async def _both(self, requests: Requests, stores: OpenCollection, until: float) -> list[_Found]:
        queries = [_store_query(each, self._depth(each)) for each in requests]
        bm25, dense = await gather(
            [
                partial(self._side, "bm25", requests[0], queries, stores, until),
                partial(self._side, "dense", requests[0], queries, stores, until),
            ]
        )
        missing = (*_out(bm25, dense), *_incomplete(stores))
        none: list[list[ScoredPassage]] = [[]] * len(requests)
        rankings = zip(requests, bm25.hits or none, dense.hits or none, strict=True)
        calls = [
            partial(self._fused, request, lexical, semantic, missing, until)
            for request, lexical, semantic in rankings
        ]
        return await gather(calls)

    async def _side(
        self,
        name: SideName,
        request: SearchRequest,
        queries: Sequence[StoreQuery],
        stores: OpenCollection,
        until: float,
    ) -> Side:
        """One side's answer to the queries of a group, of which `request` is one."""
        if name in request.without:
            return Side(failure=LOST_BEFORE)
        ask = self._sides.bm25 if name == "bm25" else self._sides.dense
        return await ask(queries, stores, until, request.probe)

    async def _fused(
        self,
        request: SearchRequest,
        bm25: Ranking,
        dense: Ranking,
        missing: tuple[str, ...],
        until: float,
    ) -> _Found:
        settings, top_k = self._settings, request.top_k
        if self._reranking is None or request.probe:
            passages = fuse(bm25, dense, settings, top_k)
            return _Found(SearchResult(passages, missing), not missing)
        fused = fuse(bm25, dense, settings, max(top_k, self._reranking.top_n))
        passages, reranked = await self._reranking.order(request.query, fused, top_k, until)
        return _Found(SearchResult(passages, missing), reranked and not missing)

    def _depth(self, request: SearchRequest) -> int:
        wanted = self._reranking.top_n if self._reranking else 0
        return max(DEPTH_FACTOR * request.top_k, LEAST_DEPTH, wanted)


def _store_query(request: SearchRequest, top_k: int) -> StoreQuery:
    return StoreQuery(request.query, top_k, (), request.filter, request.exclude, request.shape)


def _out(bm25: Side, dense: Side) -> tuple[str, ...]:
    """Names of the sides that are out. Raises RetrievalFailure where both are."""
    sides = {"bm25": bm25, "dense": dense}
    failures = {name: side.failure for name, side in sides.items() if side.failure is not None}
    if len(failures) == len(sides):
        raise RetrievalFailure(
            "; ".join(f"{name} is unavailable: {why}" for name, why in failures.items())
        )
    return tuple(failures)


def _incomplete(stores: OpenCollection) -> tuple[str, ...]:
    return (INCOMPLETE,) if stores.incomplete else ()


def _key(request: SearchRequest, stores: OpenCollection) -> Hashable:
    """All that a result depends on; None where contents may change unseen, and of a probe. Values
    of a filter go by type too: True and 1 are equal in Python, but not to a filter."""
    if stores.version is None or request.probe:
        return None
    wanted = tuple(
        (name, *((type(value), value) for value in values))
        for name, values in sorted(request.filter.items())
    )
    return (
        stores.version, request.retriever, request.query, request.top_k, request.shape,
        request.exclude, wanted,
    )  # fmt: skip
