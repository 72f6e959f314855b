"""The asynchronous side of an engine in this process, its jobs, and the thread that computes them.

The thread admits waiting jobs between two steps, and survives a failed step. Importing this module
imports neither numpy nor torch.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.core.errors import EngineFailure, EngineTimeout, Overloaded
from service.core.settings import EngineSettings
from service.engines.base import Capabilities, Delta, GenerationRequest
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
    from service.engines.batch.engine import Engine

Item = Delta | SignalDelta | Scoring | BaseException


class Call:
    """A call. The thread delivers items to the caller's event loop. A caller that leaves sets
    `cancelled`.
    """

    __slots__ = ("cancelled", "items", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.items: asyncio.Queue[Item] = asyncio.Queue()
        self.cancelled = False


class Job(Call):
    """One generation."""

    __slots__ = ("request",)

    def __init__(self, request: GenerationRequest, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.request = request


class SignalJob(Job):
    """One generation with signals.

    The thread sets `spans` (those of the prompt's tokens) before the first item, and adds row t to
    `rows` before it delivers draft token t. Existing entries never change, so the caller reads both
    from its own thread.
    """

    __slots__ = ("attention", "rows", "spans")

    def __init__(self, request: SignalRequest, loop: asyncio.AbstractEventLoop) -> None:
        plain = GenerationRequest(
            prompt=request.prompt, max_tokens=request.max_tokens, stop=request.stop
        )
        super().__init__(plain, loop)
        self.attention = request.attention
        self.spans: list[Span] = []
        self.rows: list[Any] = []


class ScoreJob(Call):
    """One text to score."""

    __slots__ = ("request",)

    def __init__(self, request: ScoreRequest, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.request = request


AnyJob = Job | ScoreJob


def deliver(items: Iterable[tuple[Call, Item]]) -> None:
    """Hand items to their event loops, with one wake-up per loop. Items of closed loops are
    dropped.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Call, Item]]] = {}
    for job, item in items:
        by_loop.setdefault(job.loop, []).append((job, item))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put, batch)
        except RuntimeError:  # the loop is closed, so nobody waits there
            for job, _ in batch:
                job.cancelled = True


def _put(batch: list[tuple[Call, Item]]) -> None:
    for job, item in batch:
        job.items.put_nowait(item)


class Worker:
    """Runs one engine in one thread. `loaded` completes when the model is loaded, or could not
    be.
    """

    def __init__(
        self, name: str, load: Callable[[], Engine], max_running: int, max_waiting: int
    ) -> None:
        self.loaded: Future[None] = Future()
        self._name = name
        self._load = load
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._engine: Engine | None = None
        self._waiting: deque[AnyJob] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)
        self._thread.start()

    @property
    def forward_passes(self) -> int:
        return self._engine.forward_passes if self._engine else 0

    @property
    def context_tokens(self) -> int | None:
        return self._engine.context_tokens if self._engine else None

    @property
    def no_signals(self) -> str | None:
        """The reason why the model provides no signals; None if it does, or is not loaded yet."""
        return self._engine.no_signals if self._engine else None

    def spans(self, text: str) -> tuple[Span, ...]:
        """Return the spans of a text's tokens. Raises EngineFailure before the model is loaded."""
        if self._engine is None:
            raise EngineFailure(f"engine {self._name!r} is not loaded")
        return self._engine.spans(text)

    @property
    def running(self) -> int:
        return self._engine.running if self._engine else 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, job: AnyJob) -> None:
        """Queue a job. Raises Overloaded if too many wait, EngineFailure after `stop`."""
        with self._changed:
            if self._stopping:
                raise EngineFailure(f"engine {self._name!r} is closed")
            if len(self._waiting) >= self._max_waiting:
                raise Overloaded(
                    f"{len(self._waiting)} calls are waiting at engine {self._name!r}; try again "
                    f"later, or raise engines.{self._name}.max_concurrency"
                )
            self._waiting.append(job)
            self._changed.notify()

    async def stop(self) -> None:
        """Fail all calls, and end the thread after its current step."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        await asyncio.shield(asyncio.to_thread(self._thread.join))

    def _run(self) -> None:
        try:
            self._engine = self._load()
        except BaseException as error:
            self.loaded.set_exception(self._as_failure(error, "could not be loaded"))
            return
        self.loaded.set_result(None)
        while (newcomers := self._next()) is not None:
            try:
                self._engine.step(newcomers)
            except BaseException as error:
                failure = self._as_failure(error, "failed in a step")
                self._engine.fail(failure)
                deliver((job, failure) for job in newcomers)
        self._end(EngineFailure(f"engine {self._name!r} was closed during the call"))

    def _next(self) -> list[AnyJob] | None:
        """Wait for work. Returns the jobs to add now (often none), or None to stop."""
        assert self._engine is not None
        with self._changed:
            while not (self._stopping or self._waiting or self._engine.running):
                self._changed.wait()
            if self._stopping:
                return None
            room = self._max_running - self._engine.running
            jobs = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        return [job for job in jobs if not job.cancelled]

    def _end(self, failure: EngineFailure) -> None:
        assert self._engine is not None
        self._engine.fail(failure)
        deliver((job, failure) for job in self._waiting)
        self._waiting.clear()

    def _as_failure(self, error: BaseException, what: str) -> EngineFailure:
        if isinstance(error, EngineFailure):
            return error
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return EngineFailure(f"engine {self._name!r} {what}: {reason}")


# a question may send more than ten judgements at once, and must not be refused because of itself
WAITING_PER_SLOT = 16


class BatchedGenerator(ABC):
    """One model, batched continuously in one thread.

    `max_concurrency` calls run at once and 16 times as many may wait; further ones raise
    Overloaded. `request.model` is ignored, because there is one model. `threads` limits the threads
    of a forward pass; the maximum is the number of physical cores.

    If a prompt does not fit the model's context beside the requested output, its oldest tokens are
    dropped, except for the first (the start token). This is the last resort: callers shorten
    prompts at better places.
    """

    most_running: int | None = None  # by the kind of engine

    def __init__(self, name: str, settings: EngineSettings, *, threads: int = 4) -> None:
        self._name = name
        self._settings = settings
        self._threads = threads
        self._notes = read_training_notes(Path(self._model))
        self._reasoning = Reasoning(settings.reasoning, settings.reasoning_tokens)
        self._worker: Worker | None = None
        self._verified = False  # by `check_files`
        self._failed = False  # the last attempt to load the model
        self._closed = False

    @property
    @abstractmethod
    def _model(self) -> str:
        """The model's folder, which may have training notes, or the name of a model elsewhere."""

    @abstractmethod
    def _verify(self) -> None:
        """Check the model's files without opening them. Raises EngineFailure."""

    @abstractmethod
    def _load(self) -> Engine:
        """Open the model; runs in the engine's thread. Raises EngineFailure."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            choices=self._constrained,
            json_schema=self._constrained,
            logprobs=True,
            token_signals=not (self._worker and self._worker.no_signals),
            context_tokens=self._worker.context_tokens if self._worker else None,
            passages=self._notes.passages,
            templates=self._notes.templates,
            autorag=self._notes.autorag,
        )

    @property
    def _constrained(self) -> bool:
        return self._settings.constrained != "none"

    @property
    def forward_passes(self) -> int:
        """The number of forward passes of the model so far, over all calls."""
        return self._worker.forward_passes if self._worker else 0

    @property
    def running(self) -> int:
        """The number of calls in the batch. A closed call counts until the current step has
        ended.
        """
        return self._worker.running if self._worker else 0

    @property
    def waiting(self) -> int:
        return self._worker.waiting if self._worker else 0

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        return self._reasoning.stream(request, self._stream)

    async def _stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        worker = await self._started()
        job = Job(request, asyncio.get_running_loop())
        worker.submit(job)
        try:
            while True:
                item = await self._next(job)
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, Delta):
                    yield item
                    if item.finish is not None:
                        return
        finally:
            job.cancelled = True

    @asynccontextmanager
    async def signals(self, request: SignalRequest) -> AsyncIterator[SignalCall]:
        worker = await self._with_signals()
        job = SignalJob(request, asyncio.get_running_loop())
        worker.submit(job)
        try:
            yield LocalSignalCall(request, job, self._next)
        finally:
            job.cancelled = True

    async def score(self, request: ScoreRequest) -> Scoring:
        worker = await self._with_signals()
        job = ScoreJob(request, asyncio.get_running_loop())
        worker.submit(job)
        try:
            item = await self._next(job)
        finally:
            job.cancelled = True
        if isinstance(item, Scoring):
            return item
        raise (
            item
            if isinstance(item, BaseException)
            else EngineFailure("the engine returned no scoring")
        )

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        return (await self._started()).spans(text)

    async def check(self) -> None:
        """Load the model if it is not loaded yet. Raises EngineFailure."""
        await self._started()

    async def check_files(self) -> str:
        if self._failed:  # what the files do not show
            await self._started()
        if self._worker is not None and self._worker.loaded.done():
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

    async def _with_signals(self) -> Worker:
        worker = await self._started()
        if worker.no_signals:
            raise EngineFailure(
                f"engine {self._name!r} does not provide token signals: {worker.no_signals}"
            )
        return worker

    async def _next(self, job: Call) -> Item:
        """Return the next item of a call. While the engine computes other calls, this one waits for
        its turn as long as its caller allows; only an engine without progress counts as silent.
        """
        if not job.items.empty():
            return job.items.get_nowait()
        while True:
            passes = self.forward_passes
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    return await job.items.get()
            except TimeoutError:
                if self.forward_passes == passes:
                    raise self._silence() from None

    def _silence(self) -> EngineTimeout:
        return EngineTimeout(
            f"engine {self._name!r} computed nothing for {self._settings.timeout_s:g} s, with "
            f"{self.running} calls running and {self.waiting} waiting; check the load of this "
            f"machine, or raise engines.{self._name}.timeout_s"
        )

    async def _started(self) -> Worker:
        """Return the worker with its model loaded. Loading does not count towards a call's time
        limit.
        """
        if self._closed:
            raise EngineFailure(f"engine {self._name!r} is closed; the service is shutting down")
        if self._worker is None:
            most = self._settings.max_concurrency
            running = min(self.most_running or most, most)
            self._worker = Worker(self._name, self._load, running, most * WAITING_PER_SLOT)
        worker = self._worker
        try:
            if not worker.loaded.done():
                await asyncio.shield(asyncio.wrap_future(worker.loaded))
            worker.loaded.result()
            self._failed = False
        except EngineFailure:
            self._failed = True
            if self._worker is worker:
                self._worker = None  # the next call tries again
            raise
        return worker


class LocalSignalCall:
    """A generation in progress. Its rows are read from the job."""

    def __init__(
        self,
        request: SignalRequest,
        job: SignalJob,
        receive: Callable[[SignalJob], Awaitable[Item]],
    ) -> None:
        self._request = request
        self._job = job
        self._receive = receive
        self._spans: list[Span] = []

    async def __aiter__(self) -> AsyncIterator[SignalDelta]:
        while not self._job.cancelled:
            item = await self._receive(self._job)
            if isinstance(item, BaseException):
                raise item
            if not isinstance(item, SignalDelta):
                raise EngineFailure(f"a call with signals received {type(item).__name__}")
            self._spans += [token.span for token in item.tokens]
            yield item
            if item.finish is not None:
                return

    async def rows(self, tokens: Sequence[int]) -> ContextRows:
        self._job.cancelled = True
        check_rows(self._request, tokens, len(self._spans))
        start, first = len(self._request.prompt), len(self._job.spans)
        draft = [(start + begin, start + end) for begin, end in self._spans]
        rows = [
            AttentionRow(first + token, tuple(self._job.rows[token].tolist())) for token in tokens
        ]
        return ContextRows((*self._job.spans, *draft), tuple(rows))
