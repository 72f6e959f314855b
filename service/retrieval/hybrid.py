"""The `Retriever` over a BM25 and a dense store, searched at once and fused.

One side out: the other answers and the result names what is missing. Both out, or the one that was
asked for: RetrievalFailure (methods §6 #5).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio
import structlog

from service.concurrency import gather
from service.domain import ScoredPassage
from service.errors import InvalidRequest, RetrievalFailure, RevelatorError
from service.retrieval.base import (
    Catalog,
    Filter,
    OpenCollection,
    SearchRequest,
    SearchResult,
    SearchStore,
    StoreQuery,
)
from service.retrieval.embedding import Embedder, Vector, differences
from service.retrieval.filters import unknown_fields
from service.retrieval.fusion import reciprocal_rank_fusion
from service.settings import RetrievalSettings

# Each side is asked for more than top_k: a passage both sides know of may stand below the cut of
# one of them.
DEPTH_FACTOR = 3
LEAST_DEPTH = 30

INCOMPLETE = "index-incomplete"

# (backend, seconds, failed), for metrics
Observe = Callable[[str, float, bool], None]

_log = structlog.get_logger(__name__)


def ignore(backend: str, seconds: float, failed: bool) -> None:
    """Observes nothing."""


@dataclass(slots=True)
class _Side:
    """What one retriever said: hits, or why it is out."""

    hits: list[ScoredPassage] = field(default_factory=list)
    failure: str | None = None


class HybridRetriever:
    """`embedder` and the stores of `catalog` each get `settings.timeout_s` per call."""

    def __init__(
        self,
        catalog: Catalog,
        embedder: Embedder,
        settings: RetrievalSettings,
        observe: Observe = ignore,
    ) -> None:
        self._catalog = catalog
        self._embedder = embedder
        self._settings = settings
        self._observe = observe

    async def check_request(self, collection: str | None, filter: Filter) -> str:
        name = await self._catalog.resolve(collection)
        if filter:
            known = await self._catalog.metadata_fields(name)
            unknown = unknown_fields(filter, known)
            if unknown:
                raise InvalidRequest(
                    f"collection {name!r} has no metadata field {', '.join(map(repr, unknown))}; "
                    f"it has: {', '.join(known) or 'none'}"
                )
        return name

    async def search(self, request: SearchRequest) -> SearchResult:
        if not request.query.strip() or request.top_k < 1:
            return SearchResult(())
        async with self._catalog.lend(request.collection) as stores:
            if request.retriever == "hybrid":
                return await self._both(request, stores)
            return await self._one(request, stores)

    async def search_many(self, requests: Sequence[SearchRequest]) -> list[SearchResult]:
        """All at once, results in order. The first that fails cancels the others."""
        return await gather([partial(self.search, request) for request in requests])

    async def warm(self, collection: str | None = None) -> None:
        """Open the collection and load the embedding model, so that no question waits for it."""
        name = await self._catalog.resolve(collection)
        async with self._catalog.lend(name):
            if self._embedder.problem() is None:
                await self._embedder.embed_queries(["warm"])

    async def aclose(self) -> None:
        """Closes the catalog and with it every store."""
        await self._catalog.aclose()

    async def _one(self, request: SearchRequest, stores: OpenCollection) -> SearchResult:
        side = _Side()
        ask = self._ask_bm25 if request.retriever == "bm25" else self._ask_dense
        await ask(request, stores, request.top_k, side)
        if side.failure is not None:
            raise RetrievalFailure(f"{request.retriever} is out: {side.failure}")
        return SearchResult(tuple(side.hits), _incomplete(stores))

    async def _both(self, request: SearchRequest, stores: OpenCollection) -> SearchResult:
        bm25, dense = _Side(), _Side()
        depth = max(DEPTH_FACTOR * request.top_k, LEAST_DEPTH)
        await gather(
            [
                partial(self._ask_bm25, request, stores, depth, bm25),
                partial(self._ask_dense, request, stores, depth, dense),
            ]
        )
        sides = {"bm25": bm25, "dense": dense}
        failures = {name: side.failure for name, side in sides.items() if side.failure}
        for name, why in failures.items():
            _log.warning("retriever_out", retriever=name, why=why)
        if len(failures) == len(sides):
            raise RetrievalFailure(
                "; ".join(f"{name} is out: {why}" for name, why in failures.items())
            )
        passages = reciprocal_rank_fusion(
            [side.hits for side in sides.values()], self._settings.rrf_k, request.top_k
        )
        return SearchResult(passages, (*failures, *_incomplete(stores)))

    async def _ask_bm25(
        self, request: SearchRequest, stores: OpenCollection, top_k: int, side: _Side
    ) -> None:
        query = _store_query(request, top_k)
        await self._ask(stores.bm25, query, side)

    async def _ask_dense(
        self, request: SearchRequest, stores: OpenCollection, top_k: int, side: _Side
    ) -> None:
        vector = await self._embed(request.query, stores, side)
        if vector is not None:
            await self._ask(stores.dense, _store_query(request, top_k, vector), side)

    async def _embed(self, query: str, stores: OpenCollection, side: _Side) -> Vector | None:
        if stores.embedding != self._embedder.contract:
            side.failure = "its vectors were made in another way: " + differences(
                stores.embedding, self._embedder.contract
            )
            return None
        started, failed = time.perf_counter(), True
        try:
            with anyio.fail_after(self._settings.timeout_s):
                vectors = await self._embedder.embed_queries([query])
            failed = False
            return vectors[0]
        except TimeoutError:
            side.failure = f"embedding took longer than {self._settings.timeout_s:g} s"
        except RevelatorError as error:
            side.failure = error.detail
        finally:
            self._observe("embedding", time.perf_counter() - started, failed)
        return None

    async def _ask(self, store: SearchStore, query: StoreQuery, side: _Side) -> None:
        started, failed = time.perf_counter(), True
        try:
            with anyio.fail_after(self._settings.timeout_s):
                side.hits = await store.search(query)
            failed = False
        except TimeoutError:
            side.failure = f"{store.backend} took longer than {self._settings.timeout_s:g} s"
        except RevelatorError as error:
            side.failure = error.detail
        finally:
            self._observe(store.backend, time.perf_counter() - started, failed)


def _store_query(request: SearchRequest, top_k: int, vector: Sequence[float] = ()) -> StoreQuery:
    return StoreQuery(request.query, top_k, vector, request.filter, request.exclude, request.shape)


def _incomplete(stores: OpenCollection) -> tuple[str, ...]:
    return (INCOMPLETE,) if stores.incomplete else ()
