"""One worker of a pool: its health, its client, its models, and its calls.

Health is an immutable value that results and probes replace; times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from yarl import URL

from service.engines.base import Generator
from service.engines.pool.limits import PoolLimits
from service.engines.pool.queue import WaitingCall

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
