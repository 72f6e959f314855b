"""Protects every call of a backend: circuit breaker, concurrency limit, deadline and retries."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from service.core.concurrency import retrieve
from service.core.errors import BackendUnavailable, RevelatorError
from service.core.metrics import BreakerState, Metrics
from service.core.settings.retrieval import RetrievalSettings

FAILURES, LOST_S, OPEN_S = 5, 3.0, 1.0  # in a row; seconds


class Breaker:
    """Decides whether a backend is called. Each admitted call holds a ticket and ends with
    `succeeded`, `failed` or `left`. `on_change` is called with each new state.

    The breaker opens for `OPEN_S` after `FAILURES` in a row, or once calls have waited `LOST_S`
    since the last success. Calls that wait at the same time count that time once. The end of a call
    that began before the latest change of state is ignored, because it says nothing about the
    current backend.
    """

    def __init__(self, on_change: Callable[[BreakerState], None] = lambda state: None) -> None:
        self._on_change = on_change
        self._failures = 0
        self._lost_s = 0.0
        self._counted = 0.0  # the end of the time counted in `_lost_s`
        self._until = 0.0
        self._ticket = 0
        self.state: BreakerState = "closed"

    def refuses(self, now: float) -> bool:
        """Whether `admit` would refuse a call."""
        return self.state == "half-open" or (self.state == "open" and now < self._until)

    def admit(self, now: float) -> int | None:
        """Return a ticket, or None while the breaker is open."""
        if self.refuses(now):
            return None
        if self.state == "open":
            self._enter("half-open")
        return self._ticket

    def succeeded(self, ticket: int) -> None:
        if ticket == self._ticket:
            self._failures, self._lost_s = 0, 0.0
            if self.state == "half-open":
                self._enter("closed")

    def recovered(self, now: float) -> None:
        """Close the breaker after a successful probe, where a trial is due. Without questions
        nobody else makes it."""
        if self.state == "open" and now >= self._until:
            self._enter("closed")

    def failed(self, ticket: int, began: float, now: float) -> None:
        """Record the failure of a call that was sent at `began`."""
        if ticket != self._ticket:
            return
        self._failures += 1
        self._lose(began, now)
        if self.state == "half-open" or self._failures >= FAILURES:
            self._open(now)

    def left(self, ticket: int, began: float, now: float) -> None:
        """Record that the caller left before a response arrived: not a failure, but its time
        counts. In the half-open state the next call is the trial."""
        if ticket != self._ticket:
            return
        if self.state == "half-open":
            self._enter("open")
        else:
            self._lose(began, now)

    def _lose(self, began: float, now: float) -> None:
        self._lost_s += max(0.0, now - max(began, self._counted))
        self._counted = now
        if self.state == "closed" and self._lost_s >= LOST_S:
            self._open(now)

    def _open(self, now: float) -> None:
        self._until = now + OPEN_S
        self._enter("open")

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self._failures, self._lost_s = 0, 0.0
        self._ticket += 1
        self._on_change(state)


CALLS = 64  # concurrent calls of a backend; further ones wait
RETRIES = 2  # of a call that the backend did not accept
GRACE_S: Final = 0.05  # seconds that a question waits for a trial of a backend that was unavailable
FIRST_PAUSE_S = 0.05  # longest pause before the first retry; doubles with every attempt

Result = TypeVar("Result")

_log = structlog.get_logger(__name__)


class Guard:
    """The guard of one backend, by its name in the metrics. Calls must be safe to repeat.

    The settings define the time limit of a call. Close it, because a trial may be running.
    """

    def __init__(self, backend: str, settings: RetrievalSettings, metrics: Metrics) -> None:
        self._backend = backend
        self._timeout_s = settings.search_timeout_s(backend)
        self._places = asyncio.Semaphore(CALLS)
        self._breaker = Breaker(self._show)
        self._trial: asyncio.Task[Any] | None = None
        self._metrics = metrics
        self._logged: BreakerState = self._breaker.state
        self._retried = partial(metrics.count, "retrieval_retries_total", backend)
        metrics.breaker(backend, self._logged)

    async def call(self, ask: Callable[[], Awaitable[Result]], until: float = math.inf) -> Result:
        """Return the result of `ask` within the backend's time limit, and by `until` (of
        `time.monotonic`) at the latest.

        Raises BackendUnavailable if the breaker is open, if the time is up (also while waiting for
        a place), or if `ask` still raises it after all retries. Other errors of `ask` are raised at
        once.
        """
        trying = self._trial is not None and not self._trial.done()
        if trying or self._breaker.refuses(time.monotonic()):
            raise self._refusal()
        if self._breaker.state == "open":
            return await self._tried(ask, until)
        return await self._bounded(ask, until)

    async def probe(self, ask: Callable[[], Awaitable[Result]], until: float) -> Result:
        """Return the result of `ask` by `until`, for a test of the backend outside of questions.

        Bypasses breaker, places and retries, so that its failure does not affect questions. Its
        success closes a breaker that is open and whose pause is over. Raises BackendUnavailable if
        the time is up, and the errors of `ask`.
        """
        limit = max(0.0, until - time.monotonic())
        try:
            async with asyncio.timeout(limit):
                result = await ask()
        except TimeoutError as error:
            raise BackendUnavailable(
                f"{self._backend} did not respond to a probe within {limit:.3g} s"
            ) from error
        self._breaker.recovered(time.monotonic())
        return result

    async def aclose(self) -> None:
        """Cancel a trial that may still be running."""
        if self._trial is not None:
            self._trial.cancel()
            await asyncio.wait({self._trial})

    async def _tried(self, ask: Callable[[], Awaitable[Result]], until: float) -> Result:
        """Make the first call after the pause, a trial. It has the backend's own time limit; its
        question waits only briefly and then continues without this backend.
        """
        trial: asyncio.Task[Result] = asyncio.create_task(self._bounded(ask, math.inf))
        self._trial = trial
        trial.add_done_callback(retrieve)
        patience = max(0.0, min(GRACE_S, until - time.monotonic()))
        await asyncio.wait({trial}, timeout=patience)
        if not trial.done():
            raise self._refusal()
        return trial.result()

    async def _bounded(self, ask: Callable[[], Awaitable[Result]], until: float) -> Result:
        started = time.monotonic()
        limit = min(self._timeout_s, max(0.0, until - started))
        try:
            async with asyncio.timeout(limit), self._places:
                result = await self._admitted(ask, started + limit, whole=limit == self._timeout_s)
        except TimeoutError as error:
            late = BackendUnavailable(f"{self._backend} took longer than {limit:.3g} s")
            self._ended(started, late)
            raise late from error
        except Exception as error:
            self._ended(started, error)
            raise
        self._ended(started)
        return result

    async def _admitted(
        self, ask: Callable[[], Awaitable[Result]], until: float, whole: bool
    ) -> Result:
        """Make an admitted call. `whole`: the time limit is the backend's own, so exceeding it is a
        failure. If the question's limit was shorter, or its caller leaves, the breaker records only
        the lost time.
        """
        began = time.monotonic()
        ticket = self._breaker.admit(began)
        if ticket is None:
            raise self._refusal()
        try:
            result = await retrying(ask, until, self._retried)
        except BackendUnavailable:
            self._breaker.failed(ticket, began, time.monotonic())
            raise
        except RevelatorError:  # the backend has responded
            self._breaker.succeeded(ticket)
            raise
        except BaseException:
            now = time.monotonic()
            if whole and now >= until:
                self._breaker.failed(ticket, began, now)
            else:
                self._breaker.left(ticket, began, now)
            raise
        else:
            self._breaker.succeeded(ticket)
            return result

    def _ended(self, started: float, failure: Exception | None = None) -> None:
        self._metrics.search(self._backend, time.monotonic() - started, failure is not None)
        if failure is not None:
            _log.warning("backend_failed", backend=self._backend, reason=str(failure))

    def _refusal(self) -> BackendUnavailable:
        return BackendUnavailable(
            f"circuit breaker of {self._backend} is open after repeated failures; it closes when "
            "a probe succeeds"
        )

    def _show(self, state: BreakerState) -> None:
        self._metrics.breaker(self._backend, state)
        if state not in {"half-open", self._logged}:  # one trial per second would fill the log
            self._logged = state
            _log.warning("breaker", backend=self._backend, state=state)


async def retrying(
    call: Callable[[], Awaitable[Result]], until: float, on_retry: Callable[[], None]
) -> Result:
    """Return the result of the first call that does not fail with BackendUnavailable.

    For calls that may be repeated: searches and embeddings, never writes. Pauses have full jitter,
    so that clients that failed together do not retry together (Brooker, Exponential Backoff And
    Jitter, AWS Architecture Blog, 2015).

    Raises the last failure after `RETRIES` more tries, or where the pause would end after `until`
    (of `time.monotonic`).
    """
    for turn in range(RETRIES):
        try:
            return await call()
        except BackendUnavailable:
            pause = random.random() * FIRST_PAUSE_S * 2.0**turn
            if time.monotonic() + pause >= until:
                raise
        on_retry()
        await asyncio.sleep(pause)
    return await call()
