"""All searches of a question see one generation of its collection, whatever is switched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import Self

import anyio

from service.retrieval.base import Filter, Retriever, SearchRequest, SearchResult

# Gives the name that means a collection's present generation for as long as it is held.
Hold = Callable[[str], AbstractAsyncContextManager[str]]


class HeldRetriever:
    """`retriever` for one question, inside `async with`.

    A collection is held from its first search to the end: a question that never searches opens
    none.
    """

    def __init__(self, retriever: Retriever, hold: Hold) -> None:
        self._retriever = retriever
        self._hold = hold
        self._stack = AsyncExitStack()
        self._lock = anyio.Lock()
        self._held: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def search(self, request: SearchRequest) -> SearchResult:
        return await self._retriever.search(await self._of_held(request))

    async def search_many(self, requests: Sequence[SearchRequest]) -> list[SearchResult]:
        return await self._retriever.search_many([await self._of_held(each) for each in requests])

    async def check_request(self, collection: str | None, filter: Filter) -> str:
        return await self._retriever.check_request(collection, filter)

    async def aclose(self) -> None:
        """Nothing to do: the retriever is others' too."""

    async def _of_held(self, request: SearchRequest) -> SearchRequest:
        name = request.collection
        async with self._lock:
            if name not in self._held:
                self._held[name] = await self._stack.enter_async_context(self._hold(name))
        return replace(request, collection=self._held[name])
