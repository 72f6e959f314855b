"""Admission: limits for running questions, waiting questions and waiting time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import anyio

from service.api.draining import Drain
from service.api.problems import ClientGone
from service.core.errors import Overloaded
from service.core.settings import ServerSettings
from service.telemetry.metrics import Metrics

WAITING: Final = 4  # questions that may wait, for each that may run
MAX_WAIT_S: Final = 30.0  # that a question waits for a place

Gone = Callable[[], Awaitable[None]]


class Place:
    """The right to run one question. `release` it at least once."""

    def __init__(self, admission: Admission, waited_s: float) -> None:
        self.waited_s = waited_s
        self._admission: Admission | None = admission

    def release(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.hand_on()


@dataclass(slots=True, eq=False)
class _Waiter:
    woken: anyio.Event = field(default_factory=anyio.Event)
    granted: bool = False
    gone: bool = False


class Admission:
    """At most `max_running` places and WAITING times as many waiting questions, first come, first
    served."""

    def __init__(self, settings: ServerSettings, metrics: Metrics, drain: Drain) -> None:
        self._settings = settings
        self._metrics = metrics
        self._drain = drain
        self._running = 0
        self._queue: deque[_Waiter] = deque()
        drain.on_begin(self._wake_all)

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def enter(self, gone: Gone) -> Place:
        """Return a place, at once or after waiting. `gone` returns when the client disconnects
        meanwhile.

        Raises Draining, Overloaded (queue full, or waited too long) or ClientGone.
        """
        if self._drain.begun:
            self._metrics.rejected("draining")
        self._drain.check()
        if self._running < self._settings.max_running:
            self._running += 1
            return Place(self, 0.0)
        if len(self._queue) >= WAITING * self._settings.max_running:
            self._metrics.rejected("busy")
            raise Overloaded(
                f"{self._running} questions are running and {len(self._queue)} are waiting. Ask "
                "again in a moment."
            )
        return await self._wait(gone)

    def hand_on(self) -> None:
        """Give a free place to the question that has waited longest."""
        if self._queue:
            waiter = self._queue.popleft()
            waiter.granted = True
            waiter.woken.set()
        else:
            self._running -= 1

    async def _wait(self, gone: Gone) -> Place:
        waiter = _Waiter()
        since = time.monotonic()
        self._queue.append(waiter)
        try:
            with self._metrics.waiting():
                await self._woken(waiter, gone)
        except BaseException:
            self._metrics.left_waiting()
            self._drop(waiter)
            raise
        if waiter.gone or not waiter.granted:
            self._drop(waiter)
            self._refuse(waiter)
        return Place(self, time.monotonic() - since)

    async def _woken(self, waiter: _Waiter, gone: Gone) -> None:
        """Until the waiter is woken, its client leaves, or it has waited too long."""

        async def watch() -> None:
            await gone()
            waiter.gone = True
            waiter.woken.set()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            with anyio.move_on_after(MAX_WAIT_S):
                await waiter.woken.wait()
            group.cancel_scope.cancel()

    def _refuse(self, waiter: _Waiter) -> None:
        """Raise why a waiter gets no place."""
        if waiter.gone:
            self._metrics.left_waiting()
            raise ClientGone("The client disconnected while its question was waiting.")
        self._metrics.rejected("draining" if self._drain.begun else "busy")
        self._drain.check()
        raise Overloaded(f"No place became free within {MAX_WAIT_S:g} s. Ask again in a moment.")

    def _drop(self, waiter: _Waiter) -> None:
        """Take it out of the queue; a place it was just given goes to the next."""
        if waiter.granted:
            self.hand_on()
        elif waiter in self._queue:
            self._queue.remove(waiter)

    def _wake_all(self) -> None:
        for waiter in self._queue:
            waiter.woken.set()
