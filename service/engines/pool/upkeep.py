"""Finds the workers of a pool, and requests their health and models."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable, Sequence

import structlog
from yarl import URL

from service.core.errors import EngineFailure
from service.core.metrics import Metrics, Phase
from service.core.settings import EngineSettings
from service.engines.pool.workers import (
    LIMITS,
    PoolLimits,
    Worker,
)
from service.engines.vllm import VllmGenerator

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
    """One task that resolves names and probes workers. `metrics` are told of changes, and `joined`
    is called when a worker comes up.

    `workers` is the pool's own dictionary, by name.
    """

    def __init__(
        self,
        name: str,
        settings: EngineSettings,
        workers: dict[str, Worker],
        connect: Callable[[str], VllmGenerator],
        metrics: Metrics,
        joined: Callable[[], None],
        limits: PoolLimits = LIMITS,
    ) -> None:
        self.problem: str | None = None
        self._name = name
        self._settings = settings
        self._workers = workers
        self._connect = connect
        self._metrics = metrics
        self._joined = joined
        self._limits = limits
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
            for worker in list(self._workers.values()):
                group.create_task(self._visit_alone(worker))

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._first_round.set()  # whoever waits in `ready` must not wait for ever

    def call_failed(self, worker: Worker, error: EngineFailure) -> None:
        """Record a failed call. Failures caused by a worker's ejection do not count."""
        if worker.phase == "up":
            self._set(worker, worker.phase_after(error, self._limits))

    async def _run(self) -> None:
        while True:
            try:
                await self.round()
            except Exception as error:
                self.problem = f"the upkeep of its workers failed ({error!r}); see the log"
                log.exception("upkeep failed", engine=self._name)
            self._first_round.set()
            await asyncio.sleep(self._limits.probe_s)

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
        listed = {worker.name: worker for worker in (Worker(url, self._connect) for url in found)}
        for name, worker in listed.items():
            known = self._workers.setdefault(name, worker)
            if known.phase == "draining":
                self._set(known, "joining")
        for name, worker in self._workers.items():
            if name not in listed:
                self._set(worker, "draining")

    async def _visit_alone(self, worker: Worker) -> None:
        """Visit one worker. An unexpected error must not end the visits of the others."""
        try:
            await self._visit(worker)
        except Exception as error:
            worker.problem = f"its upkeep failed ({error!r}); see the log"
            log.exception("upkeep failed", engine=self._name, worker=worker.name)

    async def _visit(self, worker: Worker) -> None:
        phase = worker.phase
        if phase == "draining":
            if worker.calls == 0:
                self._workers.pop(worker.name, None)
                self._metrics.worker_gone(worker.name)
                await worker.disconnect()
            return
        try:
            async with asyncio.timeout(self._limits.probe_s):
                await worker.client.health()
                if phase != "up":
                    worker.profile = await worker.client.profile()
        except TimeoutError:
            silent = f"no response to a probe within {self._limits.probe_s:g} s"
            await self._probe_failed(worker, EngineFailure(silent))
        except EngineFailure as error:
            await self._probe_failed(worker, error)
        except Exception:
            log.exception("probe failed", engine=self._name, worker=worker.name)
            await self._probe_failed(worker, EngineFailure("the probe failed; see the log"))
        else:
            if worker.phase == phase:  # calls may have ejected it meanwhile
                worker.failures = self._limits.eject_after - 1 if phase == "ejected" else 0
                self._set(worker, "up")

    async def _probe_failed(self, worker: Worker, error: EngineFailure) -> None:
        """Record a failed probe. If it ejects the worker, the calls still running there fail now
        instead of at their time limit.
        """
        self._set(worker, worker.phase_after(error, self._limits))
        if worker.phase == "ejected":
            await worker.disconnect()

    def _set(self, worker: Worker, phase: Phase) -> None:
        before, worker.phase = worker.phase, phase
        if before != phase:
            log.info(
                "worker state changed", engine=self._name, worker=worker.name, phase=phase,
                reason=worker.problem if phase == "ejected" else None,
            )  # fmt: skip
            self._metrics.worker_phase(worker.name, phase)
            if phase == "up":
                self._joined()
