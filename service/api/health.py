"""`/healthz` lives, `/readyz` can answer, `/startupz` could once, `/metrics`. Never behind keys."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Final, Literal

import anyio
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from service.api.draining import Drain
from service.api.problems import NotReady, documented
from service.runtime import Check, Runtime
from service.telemetry.metrics import CONTENT_TYPE

FRESH_S: Final = 1.0  # checks are asked no more often than that, by however many probes
CHECK_TIMEOUT_S: Final = 5.0
ALIVE: Final = b'{"status":"ok"}'

router = APIRouter(tags=["operation"])


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Ready(Health):
    """`degraded`: collections that are incomplete or do not fit the settings; questions are
    answered, and the answers say so. Absent where there is nothing to say."""

    degraded: list[str] | None = None


class Readiness:
    """The runtime's checks, cached; one round at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self.was_ready = False
        self._runtime = runtime
        self._lock = anyio.Lock()
        self._checks: list[Check] = []
        self._until = 0.0

    async def missing(self) -> list[str]:
        """What keeps the service from answering, by name; nothing when it is ready."""
        async with self._lock:
            if time.monotonic() >= self._until:
                self._checks = await self._ask()
                self._until = time.monotonic() + FRESH_S
        missing = _told(check for check in self._checks if check.needed)
        self.was_ready = self.was_ready or not missing
        return missing

    @property
    def degraded(self) -> list[str]:
        """What is amiss by the last checks without keeping anybody from answering."""
        return _told(check for check in self._checks if not check.needed)

    async def _ask(self) -> list[Check]:
        checks: list[Check] = []
        with anyio.move_on_after(CHECK_TIMEOUT_S) as waiting:
            checks = await self._runtime.checks()
        if waiting.cancelled_caught:
            return [Check("checks", False, f"no answer within {CHECK_TIMEOUT_S:.0f} s")]
        engines = self._runtime.engines
        for check in checks:
            engine = engines.get(check.name.removeprefix("engine "))
            if engine is not None:
                self._runtime.metrics.worker_up(engine.name, check.ok)
        return checks


def _told(checks: Iterable[Check]) -> list[str]:
    return [f"{check.name}: {check.detail}" for check in checks if not check.ok]


def readiness_of(request: Request) -> Readiness:
    readiness: Readiness = request.app.state.readiness
    return readiness


@router.get("/healthz", response_model=Health, summary="The process lives")
async def healthz() -> Response:
    """Touches nothing: a process that answers this lives."""
    return Response(ALIVE, media_type="application/json")


@router.get(
    "/readyz", response_model=Ready, responses=documented(503), summary="Questions can be answered"
)
async def readyz(request: Request) -> Response:
    """Asks engines and stores, at most once a second. 503 names what is missing; `degraded` what
    does not keep questions from being answered."""
    drain: Drain = request.app.state.drain
    drain.check()
    readiness = readiness_of(request)
    missing = await readiness.missing()
    if missing:
        raise NotReady("; ".join(missing))
    if readiness.degraded:
        content = Ready(degraded=readiness.degraded).model_dump_json()
        return Response(content, media_type="application/json")
    return Response(ALIVE, media_type="application/json")


@router.get(
    "/startupz", response_model=Health, responses=documented(503), summary="It was ready once"
)
async def startupz(readiness: Annotated[Readiness, Depends(readiness_of)]) -> Response:
    """503 until everything could answer for the first time, then 200 for ever."""
    missing = [] if readiness.was_ready else await readiness.missing()
    if missing:
        raise NotReady("; ".join(missing))
    return Response(ALIVE, media_type="application/json")


@router.get("/metrics", response_class=PlainTextResponse, summary="Prometheus metrics")
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    runtime: Runtime = request.app.state.runtime
    return Response(runtime.metrics.render(), headers={"content-type": CONTENT_TYPE})
