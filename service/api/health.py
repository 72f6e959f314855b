"""`/healthz` lives, `/readyz` can answer, `/startupz` could once, `/metrics`. Never behind keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Annotated, Final, Literal

import anyio
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from service.api.draining import Drain
from service.api.problems import NotReady, documented
from service.concurrency import retrieve
from service.runtime import Check, Runtime
from service.telemetry.metrics import CONTENT_TYPE

FRESH_S: Final = 1.0  # checks are asked no more often than that, by however many probes
CHECK_TIMEOUT_S: Final = 5.0
# That a probe waits for a round of checks. One that takes longer goes on, and the probe is told
# what the round before found: Kubernetes gives a probe a second, and a round is late where a
# machine is busy, which says nothing of what is checked.
PATIENCE_S: Final = 0.75
ALIVE: Final = b'{"status":"ok"}'

router = APIRouter(tags=["operation"])


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Ready(Health):
    """`degraded`: a side of retrieval that is out, collections that are incomplete or do not fit
    the settings; questions are answered, and the answers say so. Absent where there is nothing to
    say."""

    degraded: list[str] | None = None


class Readiness:
    """The runtime's checks, cached; one round at a time, in a task of its own, so that no probe
    that leaves ends it. Close it."""

    def __init__(self, runtime: Runtime) -> None:
        self.was_ready = False
        self._runtime = runtime
        self._round: asyncio.Task[None] | None = None
        self._checks: list[Check] | None = None
        self._until = 0.0

    async def missing(self) -> list[str]:
        """What keeps the service from answering, by name; nothing when it is ready. The first
        round is waited for, later ones for `PATIENCE_S`."""
        if time.monotonic() >= self._until and self._round is None:
            self._round = asyncio.create_task(self._look())
            self._round.add_done_callback(retrieve)
        if self._round is not None:
            patience = None if self._checks is None else PATIENCE_S
            done, _ = await asyncio.wait({self._round}, timeout=patience)
            for each in done:
                if not each.cancelled():
                    each.result()
        if self._checks is None:
            return ["checks: ended before any had an answer"]
        missing = _told(check for check in self._checks if check.needed)
        self.was_ready = self.was_ready or not missing
        return missing

    async def aclose(self) -> None:
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait({self._round})

    @property
    def degraded(self) -> list[str]:
        """What is amiss by the last checks without keeping anybody from answering."""
        return _told(check for check in self._checks or () if not check.needed)

    async def _look(self) -> None:
        try:
            self._checks = await self._ask()
            self._until = time.monotonic() + FRESH_S
        finally:
            self._round = None

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
