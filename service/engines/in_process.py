"""Engines in this process: their asynchronous side, and the thread that computes the calls.

The thread admits waiting calls between two steps, and survives a failed step. Importing this module
imports neither numpy nor torch.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from service.core.errors import EngineFailure, EngineTimeout, Overloaded
from service.core.settings import EngineSettings
from service.engines.base import Capabilities, Delta, GenerationRequest, Generator
from service.engines.reasoning import Reasoning
from service.engines.signals import (
    AttentionRow,
    ContextRows,
    ScoreRequest,
    Scoring,
    SignalCall,
    SignalDelta,
    SignalRequest,
    Span,
    check_rows,
)
from service.engines.training_notes import read_training_notes

if TYPE_CHECKING:
    from service.engines.batch import Batch

T = TypeVar("T", Delta, SignalDelta, Scoring)
Item = Delta | SignalDelta | Scoring | EngineFailure
# a question may send more than ten judgements at once, and must not be refused because of itself
WAITING_PER_CALL: Final = 16


class Call:
    """A call. The thread sends items to the caller's event loop. A caller that leaves sets
    `cancelled`.

    Of a call with signals, the thread sets `spans` (those of the prompt's tokens) before the first
    item, and adds row t to `rows` before it sends draft token t. Existing entries never change, so
    the caller reads both from its own thread.
    """

    def __init__(self, request: GenerationRequest | SignalRequest | ScoreRequest) -> None:
        self.request = request
        self.items: asyncio.Queue[Item] = asyncio.Queue()
        self.cancelled = False
        self.spans: list[Span] = []
        self.rows: list[Any] = []
        self._loop = asyncio.get_running_loop()

    def send(self, item: Item) -> None:
        try:
            self._loop.call_soon_threadsafe(self.items.put_nowait, item)
        except RuntimeError:  # the loop is closed, so nobody waits there
            self.cancelled = True


class Worker:
    """Runs one batch in one thread. `opened` completes when the model is open, or could not be
    opened."""

    def __init__(
        self, name: str, open_batch: Callable[[], Batch], max_running: int, max_waiting: int
    ) -> None:
        self.opened: Future[Batch] = Future()
        self.waiting: deque[Call] = deque()
        self._name = name
        self._open = open_batch
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)
        self._thread.start()

    @property
    def batch(self) -> Batch | None:
        """The batch, once the model is open."""
        done = self.opened.done() and self.opened.exception() is None
        return self.opened.result() if done else None

    def submit(self, call: Call) -> None:
        """Queue a call. Raises Overloaded if too many wait, EngineFailure after `stop`."""
        with self._changed:
            if self._stopping:
                raise EngineFailure(f"engine {self._name!r} is closed")
            if len(self.waiting) >= self._max_waiting:
                raise Overloaded(
                    f"{len(self.waiting)} calls are waiting at engine {self._name!r}; try again "
                    f"later, or raise engines.{self._name}.max_concurrency"
                )
            self.waiting.append(call)
            self._changed.notify()

    async def stop(self) -> None:
        """Fail all calls, and end the thread after its current step."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        await asyncio.shield(asyncio.to_thread(self._thread.join))

    def _run(self) -> None:
        try:
            batch = self._open()
        except BaseException as error:
            self.opened.set_exception(self._failure(error, "could not be loaded"))
            return
        self.opened.set_result(batch)
        while (newcomers := self._next(batch)) is not None:
            try:
                batch.step(newcomers)
            except BaseException as error:
                batch.fail(self._failure(error, "failed in a step"))
        closed = EngineFailure(f"engine {self._name!r} was closed during the call")
        batch.fail(closed)
        for call in self.waiting:
            call.send(closed)

    def _next(self, batch: Batch) -> list[Call] | None:
        """Wait for work. Returns the calls to add now (often none), or None to stop."""
        with self._changed:
            while not (self._stopping or self.waiting or batch.running):
                self._changed.wait()
            if self._stopping:
                return None
            room = max(min(self._max_running, batch.network.slots) - batch.running, 0)
            return [self.waiting.popleft() for _ in range(min(room, len(self.waiting)))]

    def _failure(self, error: BaseException, what: str) -> EngineFailure:
        if isinstance(error, EngineFailure):
            return error
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return EngineFailure(f"engine {self._name!r} {what}: {reason}")


class InProcessGenerator(Generator):
    """One model, whose calls run together in one thread. Its weights are opened by the first call,
    or by `check`.

    `max_concurrency` calls run at once, and at most as many as the model has slots for; 16 times as
    many may wait, and further ones raise Overloaded. `request.model` is ignored, because there is
    one model. `threads` limits the threads of a forward pass.

    If a prompt does not fit the model's context beside the requested output, its oldest tokens are
    dropped, except for the first (the start token). This is the last resort: callers shorten
    prompts at better places.
    """

    def __init__(self, name: str, settings: EngineSettings, *, threads: int = 4) -> None:
        self._name = name
        self._settings = settings
        self._threads = threads
        self._notes = read_training_notes(Path(self._model))
        self._reasoning = Reasoning(settings.reasoning, settings.reasoning_tokens)
        self._worker: Worker | None = None
        self._verified = False  # by `check_files`
        self._failed = False  # the last attempt to open the model
        self._closed = False

    @property
    @abstractmethod
    def _model(self) -> str:
        """The model's folder, which may have training notes, or the name of a model elsewhere."""

    @abstractmethod
    def _verify(self) -> None:
        """Check the model's files without opening them. Raises EngineFailure."""

    @abstractmethod
    def _open(self) -> Batch:
        """Open the model; runs in the engine's thread. Raises EngineFailure."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        batch = self._batch
        return Capabilities(
            choices=self._constrained,
            json_schema=self._constrained,
            logprobs=True,
            token_signals=not (batch and batch.network.no_signals),
            context_tokens=batch.network.context if batch else None,
            passages=self._notes.passages,
            templates=self._notes.templates,
            autorag=self._notes.autorag,
        )

    @property
    def _constrained(self) -> bool:
        return self._settings.constrained != "none"

    @property
    def _batch(self) -> Batch | None:
        return self._worker.batch if self._worker else None

    @property
    def forward_passes(self) -> int:
        """The number of forward passes of the model so far, over all calls."""
        return self._batch.forward_passes if self._batch else 0

    @property
    def running(self) -> int:
        """The number of calls in the batch. A closed call counts until the current step has
        ended.
        """
        return self._batch.running if self._batch else 0

    @property
    def waiting(self) -> int:
        return len(self._worker.waiting) if self._worker else 0

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        return self._reasoning.stream(request, self._stream)

    async def _stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        async with self._call(request) as call:
            while True:
                delta = await self._next(call, Delta)
                yield delta
                if delta.finish is not None:
                    return

    @asynccontextmanager
    async def signals(self, request: SignalRequest) -> AsyncIterator[SignalCall]:
        async with self._call(request) as call:
            yield DraftCall(request, call, self._next)

    async def score(self, request: ScoreRequest) -> Scoring:
        async with self._call(request) as call:
            return await self._next(call, Scoring)

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        return (await self._started()).opened.result().spans(text)

    async def check(self) -> None:
        """Open the model if it is not open yet. Raises EngineFailure."""
        await self._started()

    async def check_files(self) -> str:
        if self._failed:  # what the files do not show
            await self._started()
        if self._batch is not None:
            return "open"
        if not self._verified:
            await asyncio.to_thread(self._verify)
            self._verified = True
        return "opened when a question first needs it"

    async def aclose(self) -> None:
        """Fail the running calls and join the thread. A second call does nothing."""
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    @asynccontextmanager
    async def _call(
        self, request: GenerationRequest | SignalRequest | ScoreRequest
    ) -> AsyncIterator[Call]:
        """Queue a call. Leaving the context ends it."""
        worker = await self._started()
        obstacle = worker.opened.result().network.no_signals
        if obstacle and not isinstance(request, GenerationRequest):
            raise EngineFailure(f"engine {self._name!r} does not provide token signals: {obstacle}")
        call = Call(request)
        worker.submit(call)
        try:
            yield call
        finally:
            call.cancelled = True

    async def _next(self, call: Call, kind: type[T]) -> T:
        """Return the next item of a call. While the engine computes other calls, this one waits for
        its turn as long as its caller allows; only an engine without progress counts as silent.
        """
        while True:
            passes = self.forward_passes
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    item = await call.items.get()
            except TimeoutError:
                if self.forward_passes == passes:
                    raise self._silence() from None
                continue
            if isinstance(item, EngineFailure):
                raise item
            assert isinstance(item, kind)
            return item

    def _silence(self) -> EngineTimeout:
        return EngineTimeout(
            f"engine {self._name!r} computed nothing for {self._settings.timeout_s:g} s, with "
            f"{self.running} calls running and {self.waiting} waiting; check the load of this "
            f"machine, or raise engines.{self._name}.timeout_s"
        )

    async def _started(self) -> Worker:
        """Return the worker with its model open. Opening does not count towards a call's time
        limit.
        """
        if self._closed:
            raise EngineFailure(f"engine {self._name!r} is closed; the service is shutting down")
        if self._worker is None:
            most = self._settings.max_concurrency
            self._worker = Worker(self._name, self._open, most, most * WAITING_PER_CALL)
        worker = self._worker
        try:
            await asyncio.shield(asyncio.wrap_future(worker.opened))
            self._failed = False
        except EngineFailure:
            self._failed = True
            if self._worker is worker:
                self._worker = None  # the next call tries again
            raise
        return worker


class DraftCall:
    """A generation with signals in progress. Its rows are read from the call."""

    def __init__(
        self,
        request: SignalRequest,
        call: Call,
        receive: Callable[[Call, type[SignalDelta]], Awaitable[SignalDelta]],
    ) -> None:
        self._request = request
        self._call = call
        self._receive = receive
        self._spans: list[Span] = []

    async def __aiter__(self) -> AsyncIterator[SignalDelta]:
        while not self._call.cancelled:
            delta = await self._receive(self._call, SignalDelta)
            self._spans += [token.span for token in delta.tokens]
            yield delta
            if delta.finish is not None:
                return

    async def rows(self, tokens: Sequence[int]) -> ContextRows:
        self._call.cancelled = True
        check_rows(self._request, tokens, len(self._spans))
        start, first = len(self._request.prompt), len(self._call.spans)
        draft = [(start + begin, start + end) for begin, end in self._spans]
        rows = [
            AttentionRow(first + token, tuple(self._call.rows[token].tolist())) for token in tokens
        ]
        return ContextRows((*self._call.spans, *draft), tuple(rows))
