"""The snapshot that all searches of one question share.

It has one generation of each collection, even if a re-index switches to another one meanwhile, and
the sides that failed, which are not searched again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import Final, Self

import anyio

from service.core.domain import RetrieverName
from service.core.errors import RetrievalFailure
from service.retrieval.base import Filter, Permit, Retriever, SearchRequest, SearchResult, SideName

SIDES: Final[tuple[SideName, ...]] = ("bm25", "dense")
SIDES_OF: Final[dict[RetrieverName, tuple[SideName, ...]]] = {
    "bm25": ("bm25",),
    "dense": ("dense",),
    "hybrid": SIDES,
}

# Returns a name for the collection's current generation, valid while it is held.
Hold = Callable[[str], AbstractAsyncContextManager[str]]


class SnapshotRetriever:
    """Searches with `retriever` for one question, inside `async with`.

    A collection is held from its first search to the end, so that a question without searches opens
    none. A side that failed costs its time once, not once per search, unless the other one fails as
    well.
    """

    def __init__(self, retriever: Retriever, hold: Hold) -> None:
        self._retriever = retriever
        self._hold = hold
        self._stack = AsyncExitStack()
        self._lock = anyio.Lock()
        self._held: dict[str, str] = {}
        self._lost: dict[str, frozenset[SideName]] = {}  # by collection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def search(self, request: SearchRequest) -> SearchResult:
        asked = await self._of_held(request)
        try:
            result = await self._retriever.search(asked)
        except RetrievalFailure:
            self._lose(request, SIDES_OF[request.retriever])
            if request.retriever != "hybrid" or len(asked.without) != 1:
                raise
            # The side that was spared because it failed before may be back.
            failed = frozenset(SIDES) - asked.without
            result = await self._retriever.search(replace(asked, without=failed))
            self._lost[request.collection] = failed
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

    async def _of_held(self, request: SearchRequest) -> SearchRequest:
        name = request.collection
        async with self._lock:
            if name not in self._held:
                self._held[name] = await self._stack.enter_async_context(self._hold(name))
        lost = self._lost.get(name, frozenset())
        return replace(request, collection=self._held[name], without=request.without | lost)
