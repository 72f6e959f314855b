"""Structured concurrency: all of a group's work ends before the group does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream

T = TypeVar("T")
BUFFERED_EVENTS = 64


class closing(Generic[T]):
    """`contextlib.aclosing` for what is typed as an iterator: leave nothing running behind."""

    __slots__ = ("_stream",)

    def __init__(self, stream: AsyncIterator[T]) -> None:
        self._stream = stream

    async def __aenter__(self) -> AsyncIterator[T]:
        return self._stream

    async def __aexit__(self, *_: object) -> None:
        if isinstance(self._stream, AsyncGenerator):
            await self._stream.aclose()


async def gather(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run all calls at once; results in the order given. The first failure cancels the others."""
    results: dict[int, T] = {}

    async def run(index: int) -> None:
        results[index] = await calls[index]()

    try:
        # anyio's group does the same at twice the cost; every judgement of a question comes here
        async with asyncio.TaskGroup() as group:
            for index in range(len(calls)):
                group.create_task(run(index))
    except BaseExceptionGroup as failures:
        raise first_of(failures) from None
    return [results[index] for index in range(len(calls))]


async def merge(streams: Sequence[AsyncIterator[T]]) -> AsyncIterator[tuple[int, T]]:
    """Yield (index, item) of several streams as they come. A failure cancels the siblings.

    Close the result in the task that iterates it: it holds a task group.
    """
    send, receive = anyio.create_memory_object_stream[tuple[int, T]](BUFFERED_EVENTS)

    async def pump(
        index: int, stream: AsyncIterator[T], out: MemoryObjectSendStream[tuple[int, T]]
    ) -> None:
        async with out, closing(stream) as items:
            async for item in items:
                await out.send((index, item))

    try:
        async with anyio.create_task_group() as group, receive:
            for index, stream in enumerate(streams):
                group.start_soon(pump, index, stream, send.clone())
            send.close()
            async for pair in receive:
                yield pair
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        raise first_of(failures) from None


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure that is no group itself."""
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
