"""A bounded channel from one or several producing tasks to one reader.

It is much cheaper per item than a general memory stream: waiting items are taken without returning
to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Generic, TypeVar

from service.core.concurrency import running

T = TypeVar("T")
BUFFERED: Final = 64


class Channel(Generic[T]):
    """A queue for one reader, in the order in which items were put. Either side may close it.

    A producer that has put an item waits while more than `BUFFERED` items are unread.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._closed = False
        self._changed = asyncio.Event()  # for the reader: an item, or the end
        self._room = asyncio.Event()  # for the producers: an item was taken, or the end

    def full(self) -> bool:
        """Whether more than `BUFFERED` items are unread."""
        return len(self._items) > BUFFERED and not self._closed

    @property
    def more(self) -> bool:
        """Whether an item waits."""
        return bool(self._items)

    def put_nowait(self, item: T) -> None:
        """Put an item regardless of the size. A closed channel discards the item."""
        if not self._closed:
            self._items.append(item)
            self._changed.set()

    async def put(self, item: T) -> None:
        """Put an item, then wait until the channel is not full."""
        self.put_nowait(item)
        await self.room()

    async def room(self) -> None:
        """Wait until the channel is not full."""
        while self.full():
            self._room.clear()
            await self._room.wait()

    def close(self) -> None:
        """Accept no more items. The reader gets the waiting ones, then the end. May be called
        twice.
        """
        self._closed = True
        self._changed.set()
        self._room.set()

    def __aiter__(self) -> Channel[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        self._room.set()
        return self._items.popleft()


async def emitted(
    work: Callable[[Callable[[T], Awaitable[None]]], Awaitable[None]],
) -> AsyncIterator[T]:
    """Yield the items that `work` emits through the function it is given, until it ends. Closing
    the iterator cancels `work` and waits for its end. Raises the errors of `work`.
    """
    channel: Channel[T] = Channel()

    async def run() -> None:
        try:
            await work(channel.put)
        finally:
            channel.close()

    async with running(run()) as task:
        async for item in channel:
            yield item
        await task
