"""Finds the workers of a pool, and requests their health and models on connections of its own."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import orjson
import structlog
from yarl import URL

from service.core.connections import open_session, reason_of
from service.core.errors import EngineFailure, EngineUnreached
from service.core.settings import EngineSettings
from service.core.settings.urls import authorization
from service.engines.base import Generator
from service.engines.openai_wire import read_into
from service.engines.pool.workers import (
    LIMITS,
    Phase,
    PoolLimits,
    PoolObserver,
    Profile,
    Worker,
)

MOST_BYTES = 1_000_000


class Probe:
    """Requests `/health`, `/v1/models`, `/version`, and `/v1/revelator/info` of Revelator's plugin.

    Only vLLM has all four. A 404 of another server means that it does not have this endpoint.
    """

    def __init__(self, settings: EngineSettings, limit_s: float) -> None:
        self._limit_s = limit_s
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def health(self, base: URL) -> None:
        """Raise EngineUnreached if the connection is not accepted, EngineFailure if the worker is
        unhealthy."""
        status, content = await self._get(base.with_path("/health"))
        if status >= 500:
            raise EngineFailure(f"/health answered {status}: {content[:200]!r}")

    async def profile(self, base: URL) -> Profile:
        """Return what the worker serves. Raises EngineFailure with the cause."""
        models, context = _models(await self._json(base / "models"))
        version = await self._json(base.with_path("/version"), optional=True)
        info = await self._json(base / "revelator" / "info", optional=True)
        return Profile(
            models,
            version.get("version"),
            context,
            bool(info.get("signals")),
            info.get("reason"),
        )

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _json(self, url: URL, *, optional: bool = False) -> dict[str, Any]:
        status, body = await self._get(url)
        if optional and status != 200:
            return {}
        if status in (401, 403):
            raise EngineFailure(f"rejected the key ({status}); check engines.*.key")
        if status != 200:
            raise EngineFailure(f"{url.path} answered {status}; engines.*.urls must end with /v1")
        if len(body) > MOST_BYTES:
            raise EngineFailure(
                f"{url.path} returned more than {MOST_BYTES:,} bytes; check that it is an "
                "OpenAI-compatible server"
            )
        try:
            content = orjson.loads(body)
        except orjson.JSONDecodeError:
            content = None
        if not isinstance(content, dict):
            raise EngineFailure(
                f"{url.path} did not return JSON; check that it is an OpenAI-compatible server"
            )
        return content

    async def _get(self, url: URL) -> tuple[int, bytes]:
        """Return the status and the body. What follows after `MOST_BYTES` is not read."""
        body = bytearray()
        try:
            async with self._connected().get(url, allow_redirects=False) as response:
                await read_into(body, response.content.readany, MOST_BYTES)
                return response.status, bytes(body)
        except TimeoutError:
            raise EngineFailure(f"no response to a probe within {self._limit_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise EngineUnreached(
                f"the server did not accept the connection ({reason_of(error)})"
            ) from None
        except UnicodeError:  # from the look-up of the name
            raise EngineFailure(
                f"{url.host} is not a valid host name; check engines.*.urls"
            ) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise EngineFailure(
                f"the response is not valid HTTP ({type(error).__name__})"
            ) from None

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(
                headers=authorization("", self._settings.key),
                total_s=self._limit_s,
                connect_s=self._limit_s,
                limit=0,
                keep=False,
            )
        return self._session


def _models(content: dict[str, Any]) -> tuple[tuple[str, ...], int | None]:
    """Return the model names, including LoRA adapters, and the shortest context length if
    reported.
    """
    try:
        names = tuple(str(row["id"]) for row in content["data"])
        contexts = [
            int(row["max_model_len"]) for row in content["data"] if row.get("max_model_len")
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise EngineFailure("/models did not return a list of models") from None
    if not names:
        raise EngineFailure("/models lists no model")
    return names, min(contexts, default=None)


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
    """One task that resolves names and probes workers. `observer` is told of changes, and `joined`
    is called when a worker comes up.

    `workers` is the pool's own dictionary, by name.
    """

    def __init__(
        self,
        name: str,
        settings: EngineSettings,
        workers: dict[str, Worker],
        connect: Callable[[str], Generator],
        observer: PoolObserver,
        joined: Callable[[], None],
        limits: PoolLimits = LIMITS,
    ) -> None:
        self.problem: str | None = None
        self._name = name
        self._settings = settings
        self._workers = workers
        self._connect = connect
        self._observer = observer
        self._joined = joined
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
            for worker in list(self._workers.values()):
                group.create_task(self._visit_alone(worker))

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._first_round.set()  # whoever waits in `ready` must not wait for ever
        await self._probe.aclose()

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
                self._observer.worker_gone(worker.name)
                await worker.disconnect()
            return
        try:
            await self._probe.health(worker.url)
            if phase != "up":
                worker.profile = await self._probe.profile(worker.url)
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
            self._observer.worker_phase(worker.name, phase)
            if phase == "up":
                self._joined()
