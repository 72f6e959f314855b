"""The two sides of a search: BM25, and dense with its embedding. Each may be unavailable."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import anyio.to_thread
import structlog

from service.core.domain import ScoredPassage
from service.core.errors import RevelatorError
from service.core.settings import RetrievalSettings
from service.retrieval.base import OpenCollection, SearchStore, StoreQuery
from service.retrieval.embedding import Embedder, differences
from service.retrieval.search.guard import Guard
from service.retrieval.search.observer import SearchObserver
from service.retrieval.search.query_embedding import QueryEmbedding

SPARE: Final = 32  # candidates more, of a store whose passages BM25 may not know

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
            if not stores.incomplete:
                asked = replace(query, vector=vector)
                return SideResult(await self._ask(stores.dense, asked, until, probe))
            asked = replace(query, vector=vector, top_k=query.top_k + SPARE)
            found = await self._ask(stores.dense, asked, until, probe)
            return SideResult((await _known(stores, found))[: query.top_k])
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


async def _known(stores: OpenCollection, hits: Sequence[ScoredPassage]) -> list[ScoredPassage]:
    """Return the hits that BM25 knows, or all if it does not answer."""
    ids = [hit.passage.passage_id for hit in hits]
    try:
        known = await anyio.to_thread.run_sync(stores.known, ids, abandon_on_cancel=True)
    except RevelatorError:
        return [*hits]
    kept = [hit for hit in hits if hit.passage.passage_id in known]
    return [replace(hit, rank=rank) for rank, hit in enumerate(kept, 1)]
