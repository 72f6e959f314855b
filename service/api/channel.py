"""A bounded queue between the task that answers and the task that serves the response.

Much cheaper per event than a general memory stream: waiting items are taken without returning to
the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """A queue of at most `size` items, for one producer and one consumer. Either may close it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[T] = deque()
        self._closed = False
        self._changed = asyncio.Event()  # for the taker: an item, or the end
        self._room = asyncio.Event()  # for the putter: an item was taken, or the end

    def full(self) -> bool:
        return len(self._items) >= self._size and not self._closed

    def put_nowait(self, item: T) -> None:
        """Put an item regardless of the size; check `full`. A closed channel discards the item."""
        if not self._closed:
            self._items.append(item)
            self._changed.set()

    async def room(self) -> None:
        """Wait until the channel is not full."""
        while self.full():
            self._room.clear()
            await self._room.wait()

    def close(self) -> None:
        """Accept no more items. The consumer gets those that wait, then the end. May be called
        twice."""
        self._closed = True
        self._changed.set()
        self._room.set()

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            while self._items:
                item = self._items.popleft()
                self._room.set()
                yield item
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()
