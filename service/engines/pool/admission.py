"""Assigns each call to a worker, or lets it wait within limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

from service.core.errors import EngineFailure, Overloaded
from service.core.settings import EngineSettings
from service.engines.pool.choice import WorkerCandidate, choose
from service.engines.pool.limits import LIMITS, PoolLimits
from service.engines.pool.member import Member, share
from service.engines.pool.queue import WaitingCall, WaitingCalls


class WorkerAdmission:
    """`members` is the pool's own dictionary, by name; `observe` receives (worker, +1 or -1)."""

    def __init__(
        self,
        name: str,
        settings: EngineSettings,
        members: dict[str, Member],
        observe: Callable[[str, int], None],
        limits: PoolLimits = LIMITS,
    ) -> None:
        self._name = name
        self._settings = settings
        self._limits = limits
        self._members = members
        self._observe = observe
        self._waiting = WaitingCalls()
        self._promised: dict[WaitingCall, asyncio.Future[Member]] = {}
        self._running = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def place(self, waiter: WaitingCall) -> AsyncIterator[Member]:
        """Assign a worker to one call. Leaving the context frees the place for the next call.

        Raises Overloaded if too many calls wait or the wait is too long, EngineFailure if no worker
        that serves the call is up. A caller that leaves while waiting is removed.
        """
        member = None if len(self._waiting) else self._free_for(waiter)
        if member is not None:
            self._begin(waiter, member)
        else:
            member = await self._wait(waiter)
        try:
            yield member
        finally:
            self._end(waiter, member)

    def dispatch(self) -> None:
        """Assign waiting calls, after a place became free or a worker joined."""
        while len(self._waiting) and self._has_room():
            nowhere: set[tuple[str | None, bool]] = set()
            found = self._waiting.take(partial(self._unless, nowhere))
            if found is None:
                return
            waiter, member = found
            promise = self._promised.pop(waiter)
            if not promise.cancelled():
                self._begin(waiter, member)
                promise.set_result(member)

    async def _wait(self, waiter: WaitingCall) -> Member:
        if len(self._waiting) >= self._limits.waiting:
            raise Overloaded(
                f"{len(self._waiting)} calls are waiting for engine {self._name!r}; try again "
                "later, or add workers"
            )
        up = any(member.serves(waiter) for member in self._members.values())
        promise: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self._promised[waiter] = promise
        self._waiting.add(waiter)
        self.dispatch()  # others may wait for a model that this call does not need
        try:
            async with asyncio.timeout(self._limits.wait_s if up else self._limits.outage_s):
                return await promise
        except TimeoutError:
            if promise.done() and not promise.cancelled():
                return promise.result()
            raise self._too_long(waiter) from None
        except asyncio.CancelledError:
            if promise.done() and not promise.cancelled():
                self._end(waiter, promise.result())
            raise
        finally:
            if self._promised.pop(waiter, None) is not None:
                self._waiting.remove(waiter)

    def _too_long(self, waiter: WaitingCall) -> Exception:
        if any(member.serves(waiter) for member in self._members.values()):
            return Overloaded(
                f"no worker of engine {self._name!r} became free within {self._limits.wait_s:g} s; "
                "try again later, or add workers"
            )
        return outage(self._name, waiter, self._members.values())

    def _has_room(self) -> bool:
        """Whether any call could be sent. Thousands may wait, and this is evaluated for each of
        them.
        """
        most = self._limits.per_worker
        return self._running < self._settings.max_concurrency and any(
            member.health.usable and member.calls < most for member in self._members.values()
        )

    def _unless(self, nowhere: set[tuple[str | None, bool]], waiter: WaitingCall) -> Member | None:
        """Return a place, unless an equal request has already found none in this round."""
        needs = (waiter.model, waiter.signals)
        member = None if needs in nowhere else self._free_for(waiter)
        if member is None:
            nowhere.add(needs)
        return member

    def _free_for(self, waiter: WaitingCall) -> Member | None:
        if self._running >= self._settings.max_concurrency:
            return None
        serving = [member for member in self._members.values() if member.serves(waiter)]
        others = [member for member in serving if member.name not in waiter.avoid]
        now = time.monotonic()
        free = [
            WorkerCandidate(member.name, member.tokens, share(member.health, now, self._limits))
            for member in others or serving
            if member.calls < self._limits.per_worker
        ]
        name = choose(free, waiter.question or None, waiter.tokens)
        return None if name is None else self._members[name]

    def _begin(self, waiter: WaitingCall, member: Member) -> None:
        self._running += 1
        member.begin(waiter)
        self._observe(member.name, 1)

    def _end(self, waiter: WaitingCall, member: Member) -> None:
        self._running -= 1
        member.end(waiter)
        self._observe(member.name, -1)
        self.dispatch()


def outage(name: str, waiter: WaitingCall, members: Iterable[Member]) -> EngineFailure:
    """Explain why no worker can take a call."""
    reasons = "; ".join(f"{member.name}: {_why_not(member, waiter)}" for member in members)
    return EngineFailure(
        f"no worker of engine {name!r} can answer: {reasons or 'it has none'}; run "
        "`revelator check` to see the pool"
    )


def _why_not(member: Member, waiter: WaitingCall) -> str:
    if not member.health.usable or member.profile is None:
        return f"{member.health.phase}, {member.problem}"
    if waiter.model is not None and waiter.model not in member.profile.models:
        return f"serves {', '.join(member.profile.models)}, not {waiter.model}"
    obstacle = member.profile.obstacle or "Revelator's plugin is not running"
    return f"provides no token signals: {obstacle}"
