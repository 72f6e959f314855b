"""What every call of a backend passes: its circuit breaker, a place, a deadline, and retries."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import structlog

from service.errors import BackendUnavailable, RevelatorError
from service.retrieval.breaker import Breaker, BreakerState
from service.retrieval.observing import Observer
from service.retrieval.retrying import retrying
from service.settings.retrieval import RetrievalSettings

Result = TypeVar("Result")

_log = structlog.get_logger(__name__)


class Guard:
    """Of one backend, by its name in the metrics. Calls must be safe to repeat.

    Without `timeout_s` the settings say how long a call may take.
    """

    def __init__(
        self,
        backend: str,
        settings: RetrievalSettings,
        observer: Observer,
        timeout_s: float | None = None,
    ) -> None:
        own = settings.backends.of(backend)
        self._backend = backend
        self._timeout_s = timeout_s or own.timeout_s or settings.timeout_s
        self._retries = settings.retries
        self._places = asyncio.Semaphore(own.concurrency)
        self._breaker = Breaker(settings.breaker.failures, settings.breaker.open_s)
        self._observer = observer
        self._shown: BreakerState = self._breaker.state
        self._on_retry = partial(observer.retried, backend)
        observer.breaker(backend, self._shown)

    async def call(self, ask: Callable[[], Awaitable[Result]], until: float = math.inf) -> Result:
        """What `ask` returns within the backend's own time, at `until` (of `time.monotonic`) at
        the latest.

        Raises BackendUnavailable when the breaker is open, when time is up (also while waiting for
        a place), or when `ask` still raises it after its retries; what else `ask` raises at once.
        """
        started = time.monotonic()
        if self._breaker.refuses(started):
            raise self._refusal()
        limit = min(self._timeout_s, max(0.0, until - started))
        try:
            async with asyncio.timeout(limit), self._places:
                result = await self._admitted(ask, started + limit, own=limit == self._timeout_s)
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
        self, ask: Callable[[], Awaitable[Result]], until: float, own: bool
    ) -> Result:
        """`own`: time is up at the backend's own limit. Where the question allowed less, it says
        nothing of the backend; nor does a caller that leaves."""
        ticket = self._breaker.admit(time.monotonic())
        if ticket is None:
            raise self._refusal()
        self._show()
        try:
            result = await retrying(ask, self._retries, until, self._on_retry)
        except BackendUnavailable:
            self._breaker.failed(ticket, time.monotonic())
            raise
        except RevelatorError:  # it answers
            self._breaker.succeeded(ticket)
            raise
        except BaseException:
            if own and time.monotonic() >= until:
                self._breaker.failed(ticket, time.monotonic())
            else:
                self._breaker.left(ticket)
            raise
        else:
            self._breaker.succeeded(ticket)
            return result
        finally:
            self._show()

    def _ended(self, started: float, failure: Exception | None = None) -> None:
        self._observer.search(self._backend, time.monotonic() - started, failure is not None)
        if failure is not None:
            _log.warning("backend_failed", backend=self._backend, why=str(failure))

    def _refusal(self) -> BackendUnavailable:
        return BackendUnavailable(
            f"{self._backend} failed again and again and is left alone until it is probed again"
        )

    def _show(self) -> None:
        if self._breaker.state != self._shown:
            self._shown = self._breaker.state
            self._observer.breaker(self._backend, self._shown)
            _log.warning("breaker", backend=self._backend, state=self._shown)
