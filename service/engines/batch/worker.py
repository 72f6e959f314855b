"""The jobs of a batch, and the thread that computes them.

The thread admits waiting jobs between two steps, and survives a failed step. Importing this module
imports neither numpy nor torch.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Protocol

from service.core.errors import EngineFailure, Overloaded
from service.engines.base import Delta, GenerationRequest
from service.engines.signals import ScoreRequest, Scoring, SignalDelta, SignalRequest, Span

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


class BatchEngine(Protocol):
    """The part that computes; only the engine's thread calls it.

    `no_signals` is the reason why the model provides no signals, None if it does.
    """

    forward_passes: int
    context_tokens: int
    no_signals: str | None

    @property
    def running(self) -> int: ...

    def spans(self, text: str) -> tuple[Span, ...]:
        """Return the spans of a text's tokens; may be called from any thread."""

    def step(self, newcomers: list[AnyJob]) -> None:
        """Add the new jobs, compute one token for every job, and deliver the results."""

    def fail(self, error: BaseException) -> None:
        """End all jobs with `error` and start with an empty batch."""


class Worker:
    """Runs one engine in one thread. `loaded` completes when the model is loaded, or could not
    be.
    """

    def __init__(
        self, name: str, load: Callable[[], BatchEngine], max_running: int, max_waiting: int
    ) -> None:
        self.loaded: Future[None] = Future()
        self._name = name
        self._load = load
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._engine: BatchEngine | None = None
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
