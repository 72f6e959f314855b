"""Discovers the workers of a pool, and keeps their list and health up to date while it is in
use.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import time
from collections.abc import Callable, Sequence

import structlog
from yarl import URL

from service.core.errors import EngineFailure, EngineUnreached
from service.core.settings import EngineSettings
from service.engines.pool.limits import LIMITS, PoolLimits
from service.engines.pool.member import (
    Connect,
    Member,
    WorkerHealth,
    failed,
    joined,
    leaving,
    returned,
    succeeded,
)
from service.engines.pool.probe import Probe

DNS_TIMEOUT_S = 5.0


async def addresses(urls: Sequence[URL], resolve: bool) -> tuple[URL, ...]:
    """Return the workers' base URLs, sorted, without duplicates.

    With `resolve`, a host name represents all of its addresses; a Kubernetes headless service
    returns those of pods that are ready and not terminating. Raises EngineFailure if a name is
    unknown or has no address.
    """
    if not resolve:
        return tuple(sorted(set(urls)))
    found: set[URL] = set()
    for url in urls:
        found |= {url.with_host(address) for address in await _look_up(url)}
    return tuple(sorted(found))


async def _look_up(url: URL) -> list[str]:
    host = url.host or ""
    try:
        async with asyncio.timeout(DNS_TIMEOUT_S):
            rows = await asyncio.get_running_loop().getaddrinfo(
                host, url.port, type=socket.SOCK_STREAM
            )
    except TimeoutError:
        raise EngineFailure(
            f"the DNS look-up of {host} took longer than {DNS_TIMEOUT_S:g} s"
        ) from None
    except UnicodeError:
        raise EngineFailure(f"{host} is not a valid host name; check engines.*.urls") from None
    except OSError as error:
        raise EngineFailure(
            f"the DNS has no address for {host} ({error.strerror}); check engines.*.urls, and "
            "that the service has ready pods"
        ) from None
    return [str(address[0]) for *_, address in rows]


log = structlog.get_logger(__name__)


class Upkeep:
    """One task that resolves names and probes workers. `changed` is called when the state of a
    worker changed, `gone` with the name of a worker that was removed.

    `members` is the pool's own dictionary, by name.
    """

    def __init__(
        self,
        name: str,
        settings: EngineSettings,
        members: dict[str, Member],
        connect: Connect,
        changed: Callable[[Member], None],
        gone: Callable[[str], None],
        limits: PoolLimits = LIMITS,
    ) -> None:
        self.problem: str | None = None
        self._name = name
        self._settings = settings
        self._members = members
        self._connect = connect
        self._changed = changed
        self._gone = gone
        self._limits = limits
        self._probe = Probe(settings, limits.probe_s)
        self._task: asyncio.Task[None] | None = None
        self._first_round = asyncio.Event()
        self._resolve_at = 0.0

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"upkeep of {self._name}")

    async def ready(self) -> None:
        """Wait until every worker has been probed once, or the first round has failed, or `aclose`
        was called.
        """
        self.start()
        await self._first_round.wait()

    async def round(self) -> None:
        """Resolve names if it is time, then probe all workers concurrently."""
        if time.monotonic() >= self._resolve_at:
            await self._look_up()
        async with asyncio.TaskGroup() as group:
            for member in list(self._members.values()):
                group.create_task(self._visit_alone(member))

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._first_round.set()  # whoever waits in `ready` must not wait for ever
        await self._probe.aclose()

    def call_failed(self, member: Member, error: EngineFailure) -> None:
        """Record a failed call. Failures caused by a worker's ejection do not prolong the
        ejection.
        """
        if member.health.usable:
            self._failed(member, error)

    def call_succeeded(self, member: Member) -> None:
        member.health = succeeded(member.health)

    def _failed(self, member: Member, error: EngineFailure) -> None:
        member.problem = error.detail
        dead = isinstance(error, EngineUnreached)
        now = time.monotonic()
        self._set(member, failed(member.health, now, self._limits, random.random(), dead=dead))

    async def _run(self) -> None:
        while True:
            try:
                await self.round()
            except Exception as error:
                self.problem = f"the upkeep of its workers failed ({error!r}); see the log"
                log.exception("upkeep failed", engine=self._name)
            self._first_round.set()
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Return the seconds until the next probe, or until the end of the first ejection if that
        is sooner.
        """
        now = time.monotonic()
        ejected = [m.health.until - now for m in self._members.values() if _is_out(m.health)]
        return max(0.05, min([self._limits.probe_s, *ejected]))

    async def _look_up(self) -> None:
        resolve = self._settings.resolve
        self._resolve_at = time.monotonic() + (self._limits.resolve_s if resolve else math.inf)
        try:
            found = await addresses([URL(url) for url in self._settings.urls], resolve)
            self.problem = None
        except EngineFailure as error:
            self.problem = error.detail  # the known workers stay
            log.warning("workers not found", engine=self._name, reason=error.detail)
            return
        now = time.monotonic()
        listed = {member.name: member for member in (self._member(url, now) for url in found)}
        for name, member in listed.items():
            known = self._members.setdefault(name, member)
            self._set(known, returned(known.health, now))
        for name, member in list(self._members.items()):
            if name not in listed:
                self._set(member, leaving(member.health, now))

    def _member(self, url: URL, now: float) -> Member:
        return Member(url, self._connect, now)

    async def _visit_alone(self, member: Member) -> None:
        """Visit one worker. An unexpected error must not end the visits of the others."""
        try:
            await self._visit(member)
        except Exception as error:
            member.problem = f"its upkeep failed ({error!r}); see the log"
            log.exception("upkeep failed", engine=self._name, worker=member.name)

    async def _visit(self, member: Member) -> None:
        health = member.health
        if health.phase == "draining":
            if member.calls == 0:
                self._members.pop(member.name, None)
                self._gone(member.name)
                await member.disconnect()
            return
        if _is_out(health) and time.monotonic() < health.until:
            return
        try:
            await self._probe.health(member.url)
            if health.phase != "up":
                member.profile = await self._probe.profile(member.url)
        except EngineFailure as error:
            await self._probe_failed(member, error)
        except Exception:
            log.exception("probe failed", engine=self._name, worker=member.name)
            await self._probe_failed(member, EngineFailure("the probe failed; see the log"))
        else:
            if member.health.phase == health.phase:  # calls may have ejected it meanwhile
                self._set(member, joined(member.health, time.monotonic()))

    async def _probe_failed(self, member: Member, error: EngineFailure) -> None:
        """Record a failed probe. If it ejects the worker, the calls still running there fail now
        instead of at their time limit.
        """
        self._failed(member, error)
        if member.health.phase == "ejected":
            await member.disconnect()

    def _set(self, member: Member, health: WorkerHealth) -> None:
        before, member.health = member.health, health
        if before.phase != health.phase:
            log.info(
                "worker state changed", engine=self._name, worker=member.name, phase=health.phase,
                reason=member.problem if health.phase == "ejected" else None,
            )  # fmt: skip
            self._changed(member)


def _is_out(health: WorkerHealth) -> bool:
    return health.phase == "ejected"
