"""Structured concurrency: all work of a group ends before the group does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from service.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    DeadlineExceeded,
    StoreLost,
)

T = TypeVar("T")
Item = TypeVar("Item")
Query = TypeVar("Query")
BUFFERED = 64  # results of `as_done`, and items of `emitted`, that are not read yet
OF_ALL: Final = (BackendUnavailable, ConfigurationError, StoreLost)  # errors of no single query


def closing(stream: AsyncIterator[T]) -> aclosing[AsyncGenerator[T, None]]:
    """`contextlib.aclosing` for generators typed as iterators."""
    return aclosing(cast("AsyncGenerator[T, None]", stream))


@asynccontextmanager
async def running(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run `work` in a task beside the body, at a fraction of what a task group costs. Leaving the
    body cancels it and waits for its end. Raises what it raised, unless the body raises."""
    task = asyncio.create_task(work)
    task.add_done_callback(retrieve)
    try:
        yield task
    finally:
        if task.cancel():  # it has not ended
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def gather(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """Run all calls concurrently and return the results in order. The first failure cancels the
    others."""
    if len(calls) == 1:
        return [await calls[0]()]
    try:
        # anyio's group costs twice as much, and every judgement of a question runs here
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call()) for call in calls]
    except BaseExceptionGroup as failures:
        raise first_of(failures) from None
    return [task.result() for task in tasks]


async def as_done(
    work: Callable[[Item], Awaitable[T]], items: Iterable[Item], at_once: int
) -> AsyncIterator[T]:
    """Yield what `work` returns of each item, when it is done. At most `at_once` items, and at
    least one, are worked on at a time, in their order. A failure cancels the others.

    Close the result in the task that iterates it, because it holds a task group.
    """
    send, receive = anyio.create_memory_object_stream[T](BUFFERED)
    todo = iter(items)

    async def worker(out: MemoryObjectSendStream[T]) -> None:
        async with out:
            for item in todo:
                await out.send(await work(item))

    try:
        async with anyio.create_task_group() as group, receive:
            for _ in range(max(at_once, 1)):
                group.start_soon(worker, send.clone())
            send.close()
            async for result in receive:
                yield result
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        raise first_of(failures) from None


async def emitted(
    work: Callable[[Callable[[T], Awaitable[None]]], Coroutine[Any, Any, None]],
) -> AsyncIterator[T]:
    """Yield the items that `work` emits through the function it is given, until it ends. It waits
    while more than `BUFFERED` items are unread. Closing the iterator cancels `work` and waits for
    its end. Raises the errors of `work`.
    """
    items: deque[T] = deque()
    changed, room = asyncio.Event(), asyncio.Event()

    async def emit(item: T) -> None:
        items.append(item)
        changed.set()
        while len(items) > BUFFERED:
            room.clear()
            await room.wait()

    async with running(work(emit)) as task:
        task.add_done_callback(lambda _: changed.set())
        while items or not task.done():
            if items:
                room.set()
                yield items.popleft()
            else:
                changed.clear()
                await changed.wait()


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first failure that is not a group itself."""
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


class _Cut:
    """Cancels the task inside it, and distinguishes its own cancellation from others.

    It works as `asyncio.timeout` does. A cancel scope of anyio costs six times as much.
    """

    __slots__ = ("_cancelling", "_done", "_task")

    def _enter(self) -> asyncio.AbstractEventLoop:
        # reading the process's id is a system call, so it is done once
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("there is no task here that could be cancelled")
        self._task = task
        self._cancelling = task.cancelling()
        self._done = False
        return loop

    def _cut(self) -> None:
        self._done = True
        self._task.cancel()

    def _ended_by_it(self, kind: type[BaseException] | None) -> bool:
        """Whether this object cancelled the task. Call it once, on leaving: it takes back the
        cancellation.
        """
        if not self._done:
            return False
        others = self._task.uncancel() > self._cancelling
        return kind is asyncio.CancelledError and not others


OUT_OF_TIME: Final = "the question's time limit was reached; allow a longer timeout_s"


class Deadline(_Cut):
    """Raise DeadlineExceeded from a body that lasts longer than until `seconds` after this object
    was made. It may be entered again, at a tenth of what a timer of its own would cost; `close` it.
    Between two bodies nothing is cancelled.
    """

    __slots__ = ("_detail", "_handle", "_inside", "_over")

    def __init__(self, seconds: float, detail: str = OUT_OF_TIME) -> None:
        self._detail = detail
        self._inside = self._over = False
        self._handle = self._enter().call_later(seconds, self._end)

    def _end(self) -> None:
        self._over = True
        if self._inside:
            self._cut()

    def __enter__(self) -> None:
        if self._over:
            raise self._exceeded()
        self._inside = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside = False
        if self._ended_by_it(kind):
            raise self._exceeded() from None

    def close(self) -> None:
        self._handle.cancel()

    def _exceeded(self) -> DeadlineExceeded:
        return DeadlineExceeded(self._detail)


@contextmanager
def deadline(seconds: float, detail: str = OUT_OF_TIME) -> Iterator[None]:
    """Raise DeadlineExceeded with this detail if the body takes longer than `seconds`."""
    limit = Deadline(seconds, detail)
    try:
        with limit:
            yield
    finally:
        limit.close()


class Interrupted(Exception):
    """The work inside `interruptible` was ended by `fire`."""


class interruptible(_Cut):
    """Registers the task in `waiting`; `fire` ends whatever it awaits inside by Interrupted."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: set[interruptible]) -> None:
        self._waiting = waiting

    def __enter__(self) -> Self:
        self._enter()
        self._waiting.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._waiting.discard(self)
        if self._ended_by_it(kind):
            raise Interrupted from None

    def fire(self) -> None:
        self._cut()


def retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's exception in its done callback. Whoever awaits the task still gets it; if
    everybody left, asyncio must not complain.
    """
    if not task.cancelled():
        task.exception()


class Batcher(Generic[Query, T]):
    """Combines queries made in one turn of the event loop, or shortly after: `send` receives up to
    `most` of them and returns a result or an exception for each.

    While a request is in flight, further queries wait up to `window_s` seconds for others to join.
    A request ends when all of its callers have left.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Query]], Awaitable[Sequence[T | Exception]]],
        most: int,
        window_s: float = 0.0,
    ) -> None:
        self._send = send
        self._most = most
        self._window_s = window_s
        self._in_flight = 0
        self._waiting: list[tuple[Query, asyncio.Future[T]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, query: Query) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((query, answer))
        if len(self._waiting) == 1:
            self._start()
        return await answer

    def _start(self) -> None:
        task = asyncio.create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        await asyncio.sleep(self._window_s if self._in_flight else 0)
        batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        if self._waiting:
            self._start()
        batch = [(query, answer) for query, answer in batch if not answer.done()]
        if not batch:
            return
        task = asyncio.current_task()

        def left(_: asyncio.Future[T]) -> None:
            if task and all(answer.done() for _, answer in batch):
                task.cancel()

        for _, answer in batch:
            answer.add_done_callback(left)
        self._in_flight += 1
        try:
            results = await self._results([query for query, _ in batch])
        finally:
            self._in_flight -= 1
        for (_, answer), result in zip(batch, results, strict=True):
            _settle(answer, result)

    async def _results(self, queries: Sequence[Query]) -> Sequence[T | Exception]:
        """Send queries. If they are refused together, because of one perhaps, each half is sent by
        itself, so that a query fails only because of itself."""
        try:
            return await self._send(queries)
        except Exception as error:
            if len(queries) == 1 or isinstance(error, OF_ALL):
                return [error] * len(queries)
        half = len(queries) // 2
        return [*await self._results(queries[:half]), *await self._results(queries[half:])]


def _settle(answer: asyncio.Future[T], result: T | Exception) -> None:
    if answer.done():  # its caller has left
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
