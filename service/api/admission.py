"""Admission: limits for running questions, waiting questions and waiting time; and the shutdown.

Places are shared fairly between tenants: a free place goes to the waiting tenant with the fewest
running questions (max-min fairness), and within a tenant to the question that has waited longest.
So a tenant with many questions fills only its own queue, and does not delay a tenant that uses less
than a fair share.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from service.api.wire import CLIENT_GONE, Refusal
from service.core.concurrency import running
from service.core.errors import Draining, Overloaded
from service.core.metrics import Metrics
from service.core.settings import ServerSettings

DETAIL: Final = "The server is shutting down. Ask again in a moment."


class Drain:
    """Tracks work in progress during a shutdown. Work registers a callback that cancels it.

    `begin` refuses new work, `finished` waits for the work in progress, `expire` cancels the rest.
    """

    def __init__(self) -> None:
        self.begun = False
        self._work: dict[object, Callable[[], None]] = {}
        self._on_begin: list[Callable[[], None]] = []
        self._idle = anyio.Event()

    def check(self) -> None:
        """Raise Draining if the shutdown has begun."""
        if self.begun:
            raise Draining(DETAIL)

    @contextmanager
    def work(self, cut: Callable[[], None]) -> Iterator[None]:
        """Register work that the shutdown waits for. `cut` is called when the time is up.

        Raises Draining if the shutdown has begun.
        """
        self.check()
        key = object()
        self._work[key] = cut
        try:
            yield
        finally:
            del self._work[key]
            self._tell()

    def on_begin(self, callback: Callable[[], None]) -> None:
        """Register a callback for the beginning of the shutdown."""
        self._on_begin.append(callback)

    def begin(self) -> None:
        if self.begun:
            return
        self.begun = True
        for callback in self._on_begin:
            callback()
        self._tell()

    async def finished(self, seconds: float) -> None:
        """Wait at most this long until no work is left, then cancel the rest."""
        with anyio.move_on_after(seconds):
            await self._idle.wait()
        self.expire()

    def expire(self) -> None:
        """Cancel all remaining work."""
        for cut in list(self._work.values()):
            cut()
        self._idle.set()

    def _tell(self) -> None:
        if self.begun and not self._work:
            self._idle.set()


SHARES: Final = 48  # shares of one turn
EVENT: Final = 1  # shares of an event of a question: 0.2 ms
REQUEST: Final = 8  # shares of the start of a question: 1.5 ms


class Turns:
    """Lets tasks continue in order of arrival, a limited number in each turn of the loop."""

    def __init__(self) -> None:
        self._left = SHARES
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._woken = 0  # those that a new turn lets continue, and that have not continued yet
        self._renewing = False

    async def take(self, shares: int) -> None:
        """Continue in this turn, or wait for the next one that has room."""
        self._renew_soon()
        if not self._waiting and not self._woken and self._left > 0:
            self._left -= shares
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, shares))
        try:
            await waiter
        finally:
            if not waiter.cancelled():
                self._woken -= 1

    def _renew_soon(self) -> None:
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        """Start a turn."""
        self._renewing = False
        self._left = SHARES
        while self._waiting and self._left > 0:
            waiter, shares = self._waiting.popleft()
            if not waiter.done():  # otherwise it was cancelled
                waiter.set_result(None)
                self._woken += 1
                self._left -= shares
        if self._waiting:
            self._renew_soon()


# Waiting questions per running question. If questions take equally long, the last one waits for
# less than one question's time, so that under overload an admitted question takes at most twice its
# own time, and all others are refused at once.
WAITING: Final = 0.75
MAX_WAIT_S: Final = 30.0  # seconds that a question waits for a place
LATEST: Final = 0.1  # weight of the newest question in the mean duration
MAX_RETRY_S: Final = 60

Gone = Callable[[], Coroutine[Any, Any, None]]


class Place:
    """The right to run one question. `release` it at least once."""

    def __init__(self, admission: Admission, tenant: str, waited_s: float) -> None:
        self.waited_s = waited_s
        self._tenant = tenant
        self._since = time.monotonic()
        self._admission: Admission | None = admission

    def release(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.took(time.monotonic() - self._since)
            admission.hand_on(self._tenant)


@dataclass(slots=True, eq=False)
class WaitingQuestion:
    """A question that waits. `granted` ends when it has a place, or with why it gets none."""

    tenant: str
    since: float = field(default_factory=time.monotonic)
    granted: asyncio.Future[None] = field(default_factory=asyncio.Future)


def displaced_by(tenant: str, waiting: Sequence[WaitingQuestion]) -> WaitingQuestion | None:
    """Return the question that makes room for one of `tenant`: the newest of the tenant with the
    most, if that keeps at least as many as `tenant` then has."""
    counts = Counter(waiter.tenant for waiter in waiting)
    most = max(counts, key=counts.__getitem__, default=tenant)
    if counts[most] - 1 < counts[tenant] + 1:
        return None
    return next(waiter for waiter in reversed(waiting) if waiter.tenant == most)


def retry_after(running: int, waiting: int, mean_s: float | None) -> int:
    """Return the seconds until the questions that wait now have places, from the mean duration of a
    question: at least 1, at most MAX_RETRY_S."""
    expected = (mean_s or 0.0) * waiting / max(1, running)
    return max(1, min(MAX_RETRY_S, math.ceil(expected)))


class Admission:
    """At most `max_running` places, and WAITING times as many waiting questions (at least one)."""

    def __init__(self, settings: ServerSettings, metrics: Metrics, drain: Drain) -> None:
        self._settings = settings
        self._metrics = metrics
        self._drain = drain
        self._running: Counter[str] = Counter()
        self._waiting: list[WaitingQuestion] = []  # the first has waited longest
        self._mean_s: float | None = None
        drain.on_begin(self._refuse_all)

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def enter(self, gone: Gone, tenant: str) -> Place:
        """Return a place for a question of `tenant`, at once or after waiting. `gone` returns when
        the client disconnects meanwhile.

        Raises Draining, Overloaded (no room to wait, or waited too long) or CLIENT_GONE.
        """
        if self._drain.begun:
            self._metrics.rejected("draining")
        self._drain.check()
        if self.running < self._settings.max_running:
            self._running[tenant] += 1
            return Place(self, tenant, 0.0)
        if self.waiting >= max(1, math.ceil(WAITING * self._settings.max_running)):
            self._make_room(tenant)
        return await self._wait(gone, WaitingQuestion(tenant))

    def hand_on(self, tenant: str) -> None:
        """Give the place of a question of `tenant` that has ended to a waiting question: of the
        tenant with the fewest running ones, the first."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        if self._waiting:
            waiter = min(self._waiting, key=lambda waiter: self._running[waiter.tenant])
            self._waiting.remove(waiter)
            self._running[waiter.tenant] += 1
            waiter.granted.set_result(None)

    def took(self, seconds: float) -> None:
        """Record the duration of a question."""
        mean = seconds if self._mean_s is None else self._mean_s
        self._mean_s = mean + LATEST * (seconds - mean)

    def _make_room(self, tenant: str) -> None:
        displaced = displaced_by(tenant, self._waiting)
        if displaced is None:
            self._metrics.rejected("busy")
            raise self._full()
        self._waiting.remove(displaced)
        displaced.granted.set_exception(self._full())

    async def _wait(self, gone: Gone, waiter: WaitingQuestion) -> Place:
        """Wait until the question gets a place, its client disconnects, or it has waited too
        long."""
        self._waiting.append(waiter)
        try:
            with self._metrics.waiting():
                async with running(gone()) as leaving:
                    await asyncio.wait(
                        {waiter.granted, leaving},
                        timeout=MAX_WAIT_S,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
            if not leaving.cancelled():
                raise Refusal(
                    CLIENT_GONE, "The client disconnected while its question was waiting."
                )
            if not waiter.granted.done():
                raise self._overloaded(f"No place became free within {MAX_WAIT_S:g} s.")
            waiter.granted.result()
        except BaseException as error:
            if isinstance(error, Overloaded | Draining):
                self._metrics.rejected("busy" if isinstance(error, Overloaded) else "draining")
            else:
                self._metrics.count("questions_total", "none", "none", "cancelled")
            self._drop(waiter)
            raise
        return Place(self, waiter.tenant, time.monotonic() - waiter.since)

    def _full(self) -> Overloaded:
        return self._overloaded(
            f"{self.running} questions are running and {self.waiting} are waiting."
        )

    def _overloaded(self, reason: str) -> Overloaded:
        seconds = retry_after(self.running, self.waiting, self._mean_s)
        error = Overloaded(f"{reason} Ask again in {seconds} s.")
        error.retry_after = seconds
        return error

    def _drop(self, waiter: WaitingQuestion) -> None:
        """Remove the question from its queue; a place that it was just given goes to the next
        one.
        """
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.granted.exception() is None:
            self.hand_on(waiter.tenant)

    def _refuse_all(self) -> None:
        for waiter in self._waiting:
            waiter.granted.set_exception(Draining(DETAIL))
        self._waiting.clear()
