"""The thread that computes: it admits what waits between two steps, and survives a failed step."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from service.core.errors import EngineFailure, Overloaded
from service.engines.batching.jobs import AnyJob, BatchEngine, deliver
from service.engines.signals import Span


class Worker:
    """Runs one engine in one thread. `loaded` ends when the engine can answer, or cannot."""

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
        """Why the model gives no signals; None where it does, or is not loaded yet."""
        return self._engine.no_signals if self._engine else None

    def spans(self, text: str) -> tuple[Span, ...]:
        """Places of a text's tokens. Raises EngineFailure before the model is loaded."""
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
        """Queue a job. Raises Overloaded when too many wait, EngineFailure after `stop`."""
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
        """Fail what runs and waits, and end the thread after the step it is in."""
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
        """Wait for work; the jobs to take in now (often none), or None to stop."""
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
