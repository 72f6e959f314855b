"""The workers of a pool: their health, the choice of one for a call, and the calls that wait.

Health is an immutable value that results and probes replace; times are monotonic seconds. The
worker of a call is chosen by rendezvous hashing (Thaler and Ravishankar, 1998) with bounded load
(Mirrokni, Thorup and Zadimoghaddam, 2018), else the least loaded one.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, Protocol, TypeVar, runtime_checkable

from yarl import URL

from service.core.errors import EngineFailure, Overloaded
from service.core.settings import EngineSettings
from service.engines.base import Generator


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """`resolve_s`, `probe_s`: between DNS look-ups and between probes; the latter also limits a
    probe. `per_worker`: concurrent calls. `waiting`: calls that wait; further ones get 503, and so
    does a call that waits longer than `wait_s`, or `outage_s` while no worker is up. `eject_after`:
    consecutive failures. `eject_s`: the first ejection; doubles with each further one, up to a
    minute, until `forgive_s` of health. `slow_start_s`: until a new worker gets its full share.
    `retries`: how often a call is restarted at another worker.
    """

    resolve_s: float = 5.0
    probe_s: float = 2.0
    per_worker: int = 64
    waiting: int = 2048
    wait_s: float = 30.0
    outage_s: float = 5.0
    eject_after: int = 3
    eject_s: float = 1.0
    forgive_s: float = 60.0
    slow_start_s: float = 10.0
    retries: int = 3


LIMITS: Final = PoolLimits()


Place = TypeVar("Place")


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call that waits. `turn` is the number of its question's earlier calls, `tokens` an estimate
    of its size.

    `model` None accepts any model. `avoid` are workers that failed it before.
    """

    question: str
    turn: int = 0
    tokens: int = 0
    model: str | None = None
    signals: bool = False
    avoid: frozenset[str] = frozenset()


class WaitingCalls:
    """Questions take turns, those in progress before new ones; the calls of a question stay in
    order.

    Therefore the parallel calls of one question do not block others, and questions in progress
    finish first.
    """

    def __init__(self) -> None:
        self._under_way: OrderedDict[str, deque[WaitingCall]] = OrderedDict()
        self._new: OrderedDict[str, deque[WaitingCall]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, waiter: WaitingCall) -> None:
        self._ring(waiter).setdefault(waiter.question, deque()).append(waiter)
        self._count += 1

    def remove(self, waiter: WaitingCall) -> None:
        """Remove a call whose caller left or whose time limit has passed."""
        ring = self._ring(waiter)
        calls = ring[waiter.question]
        calls.remove(waiter)
        self._count -= 1
        if not calls:
            del ring[waiter.question]

    def take(
        self, place: Callable[[WaitingCall], Place | None]
    ) -> tuple[WaitingCall, Place] | None:
        """Remove and return the next call for which `place` finds a place."""
        for ring in (self._under_way, self._new):
            for question, calls in ring.items():
                found = place(calls[0])
                if found is not None:
                    ring.move_to_end(question)
                    waiter = calls[0]
                    self.remove(waiter)
                    return waiter, found
        return None

    def _ring(self, waiter: WaitingCall) -> OrderedDict[str, deque[WaitingCall]]:
        return self._under_way if waiter.turn else self._new


# The question's worker is used up to this multiple of its share of all work,
BOUND = 1.5
# and always up to this many tokens: a batch absorbs them easily, a cold prefix cache costs more.
SLACK = 4096


@dataclass(frozen=True, slots=True)
class WorkerCandidate:
    """A worker with a free place. `tokens` are outstanding there; `share` is 1, or less while the
    worker is new.
    """

    name: str
    tokens: int
    share: float = 1.0


def choose(candidates: Sequence[WorkerCandidate], key: str | None, tokens: int) -> str | None:
    """Return the worker for a call of about `tokens`, or None without candidates.

    Calls with the same key go to the same worker as long as it has at most `BOUND` times its share
    of the outstanding tokens, or `SLACK`; then to the key's second worker, and so on.
    """
    if not candidates:
        return None
    if key is not None:
        total = sum(candidate.tokens for candidate in candidates) + tokens
        weight = sum(candidate.share for candidate in candidates)
        for candidate in sorted(candidates, key=lambda c: affinity(key, c.name), reverse=True):
            most = candidate.share * max(SLACK, BOUND * total / weight)
            if not candidate.tokens or candidate.tokens + tokens <= most:
                return candidate.name
    return min(candidates, key=lambda c: ((c.tokens + tokens) / c.share, c.name)).name


def affinity(key: str, name: str) -> int:
    """Return the worker's score for a key, which is the same in every gateway and process."""
    return int.from_bytes(hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest())


QUESTIONS = 1024  # the most recent; a forgotten question may return to the worker that failed it


class Losses:
    """The workers that failed each question. A call without a question is not remembered."""

    def __init__(self, most: int = QUESTIONS) -> None:
        self._most = most
        self._workers: OrderedDict[str, frozenset[str]] = OrderedDict()

    def add(self, question: str, worker: str) -> None:
        if not question:
            return
        self._workers[question] = self.of(question) | {worker}
        self._workers.move_to_end(question)
        if len(self._workers) > self._most:
            self._workers.popitem(last=False)

    def of(self, question: str) -> frozenset[str]:
        return self._workers.get(question, frozenset())


Phase = Literal["joining", "up", "ejected", "draining"]

LONGEST_EJECTION_S: Final = 60.0
FEWEST_SHARE: Final = 0.1  # share of the work of a worker that has just joined


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """`joining`: its models are not known yet. `ejected`: it failed; a successful probe after
    `until` readmits it. `draining`: it was removed from the list. `since` is when the phase began.

    `failures` counts consecutive failed calls and probes, `ejections` how often it was ejected
    without `limits.forgive_s` of health in between.
    """

    phase: Phase = "joining"
    since: float = 0.0
    failures: int = 0
    ejections: int = 0
    until: float = 0.0

    @property
    def usable(self) -> bool:
        return self.phase == "up"


def succeeded(health: WorkerHealth) -> WorkerHealth:
    """Return the health after a successful call or probe of a worker that is up."""
    return replace(health, failures=0) if health.failures else health


def joined(health: WorkerHealth, now: float) -> WorkerHealth:
    """Return the health of a worker that has reported its models: up, with the share of a new
    worker.
    """
    if health.phase in ("up", "draining"):
        return succeeded(health)
    return replace(health, phase="up", since=now, failures=0)


def failed(
    health: WorkerHealth, now: float, limits: PoolLimits, jitter: float, *, dead: bool = False
) -> WorkerHealth:
    """Return the health after a failed call or probe.

    `dead`: the connection was not accepted, which ejects the worker at once. `jitter` in [0, 1)
    spreads the times at which several gateways retry it.
    """
    failures = health.failures + 1
    tolerated = health.phase == "up" and not dead and failures < limits.eject_after
    if tolerated or health.phase == "draining":
        return replace(health, failures=failures)
    calm = health.phase == "up" and now - health.since >= limits.forgive_s
    ejections = 1 if calm else health.ejections + 1
    pause = min(LONGEST_EJECTION_S, limits.eject_s * 2.0 ** (ejections - 1)) * (1 + jitter) / 2
    return WorkerHealth("ejected", now, failures, ejections, now + pause)


def leaving(health: WorkerHealth, now: float) -> WorkerHealth:
    """Return the health of a worker that is no longer listed: it finishes its calls and gets no new
    ones.
    """
    return health if health.phase == "draining" else WorkerHealth("draining", now)


def returned(health: WorkerHealth, now: float) -> WorkerHealth:
    """Return the health of a worker that is listed again."""
    return WorkerHealth("joining", now) if health.phase == "draining" else health


def share(health: WorkerHealth, now: float, limits: PoolLimits) -> float:
    """Return the worker's part of its normal share of work, from 0.1 to 1 over `slow_start_s`."""
    if limits.slow_start_s <= 0:
        return 1.0
    grown = (now - health.since) / limits.slow_start_s
    return min(1.0, FEWEST_SHARE + (1 - FEWEST_SHARE) * grown)


Connect = Callable[[str], Generator]


@dataclass(frozen=True, slots=True)
class Profile:
    """What a worker reported when it joined. `signals`: it provides token signals; `obstacle`: why
    it does not, as reported by Revelator's plugin, None where the plugin does not run.
    """

    models: tuple[str, ...]
    version: str | None = None
    context_tokens: int | None = None
    signals: bool = False
    obstacle: str | None = None


class Member:
    """A worker. Its `client` is closed when it is ejected, which ends the calls in progress
    there.
    """

    def __init__(self, url: URL, connect: Connect, now: float) -> None:
        self.url = url
        self.name = f"{url.host}:{url.port}"
        self.health = WorkerHealth(since=now)
        self.profile: Profile | None = None
        self.problem = "not probed yet"
        self.calls = 0
        self.tokens = 0
        self._connect = connect
        self._client: Generator | None = None

    @property
    def client(self) -> Generator:
        if self._client is None:
            self._client = self._connect(str(self.url))
        return self._client

    async def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def serves(self, waiter: WaitingCall) -> bool:
        """Whether it is up, and has the model (or adapter) and the signals that a call needs."""
        if not self.health.usable or self.profile is None:
            return False
        if waiter.signals and not self.profile.signals:
            return False
        return waiter.model is None or waiter.model in self.profile.models

    def begin(self, waiter: WaitingCall) -> None:
        self.calls += 1
        self.tokens += waiter.tokens

    def end(self, waiter: WaitingCall) -> None:
        self.calls -= 1
        self.tokens -= waiter.tokens


class PoolObserver(Protocol):
    def worker_in_flight(self, worker: str, change: int) -> None:
        """Record that a call at a worker began (+1) or ended (-1)."""

    def worker_phase(self, worker: str, phase: Phase) -> None:
        """Record that the state of a worker changed."""

    def worker_gone(self, worker: str) -> None:
        """Record that a worker left the pool, after its last call."""

    def worker_failure(self, worker: str) -> None:
        """Record that a worker lost a call."""

    def call_resent(self) -> None:
        """Record that a call was repeated because its server had closed the connection."""


class _Unobserved:
    def worker_in_flight(self, worker: str, change: int) -> None:
        pass

    def worker_phase(self, worker: str, phase: Phase) -> None:
        pass

    def worker_gone(self, worker: str) -> None:
        pass

    def worker_failure(self, worker: str) -> None:
        pass

    def call_resent(self) -> None:
        pass


UNOBSERVED: Final[PoolObserver] = _Unobserved()


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The current state of one worker. `signals`: it provides token signals; `problem`: why it is
    not up, or why it provides none although Revelator's plugin runs in it.
    """

    name: str
    phase: Phase
    models: tuple[str, ...]
    version: str | None
    signals: bool
    calls: int
    problem: str | None


@runtime_checkable
class WorkerPool(Protocol):
    """An engine that consists of workers."""

    def workers(self) -> list[WorkerState]:
        """All known workers, by name."""


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
