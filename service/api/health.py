"""`/healthz`, `/readyz`, `/startupz` and `/metrics`. They need no key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from service.api.access import visible_to
from service.api.edge import edge_of
from service.api.wire import NOT_READY, Refusal, documented
from service.checks import Check
from service.core.concurrency import retrieve
from service.core.metrics import CONTENT_TYPE, Metrics

FRESH_S: Final = 1.0  # seconds between checks, however many probes there are
CHECK_TIMEOUT_S: Final = 5.0
# Seconds that a probe waits for a round of checks. If the round takes longer, it continues, and the
# probe gets the result of the previous one: the limit of Kubernetes for a probe is one second, and
# a round may be late because the machine is busy, which says nothing about what is checked.
PATIENCE_S: Final = 0.75
ALIVE: Final = b'{"status":"ok"}'

router = APIRouter(tags=["operation"])


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Ready(Health):
    """State of the service. `degraded` names sides of retrieval that are unavailable, and
    collections that are incomplete or do not match the settings. Questions are still answered,
    and the answers say so. Absent if there is nothing to report."""

    degraded: list[str] | None = None


class Readiness:
    """Cached results of `look`, which are also counted.

    One round of checks runs at a time, in a separate task, so that a probe that disconnects does
    not cancel it. Must be closed.
    """

    def __init__(self, look: Callable[[], Awaitable[list[Check]]], metrics: Metrics) -> None:
        self.was_ready = False
        self._look = look
        self._metrics = metrics
        self._round: asyncio.Task[None] | None = None
        self._checks: list[Check] | None = None
        self._until = 0.0

    async def missing(self) -> list[str]:
        """Return what keeps the service from answering, by name. Empty if it is ready.

        Waits for the first round of checks, and for later ones at most `PATIENCE_S`.
        """
        if time.monotonic() >= self._until and self._round is None:
            self._round = asyncio.create_task(self._run_round())
            self._round.add_done_callback(retrieve)
        if self._round is not None:
            patience = None if self._checks is None else PATIENCE_S
            done, _ = await asyncio.wait({self._round}, timeout=patience)
            for task in done:
                if not task.cancelled():
                    task.result()
        if self._checks is None:
            return ["The checks ended before any of them returned a result."]
        missing = _descriptions(check for check in self._checks if check.needed)
        self.was_ready = self.was_ready or not missing
        return missing

    async def aclose(self) -> None:
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait({self._round})

    def degraded(self, visible: Callable[[str], bool]) -> list[str]:
        """Return the problems found by the last checks that do not keep the service from
        answering. Collections that are not `visible` are only counted."""
        checks = [check for check in self._checks or () if not (check.needed or check.ok)]
        named = [check for check in checks if not check.collection or visible(check.collection)]
        hidden = len(checks) - len(named)
        more = f"collections: {hidden} have a problem; a key that may use them is told their names"
        return [*_descriptions(named), *([more] if hidden else [])]

    async def _run_round(self) -> None:
        try:
            with anyio.move_on_after(CHECK_TIMEOUT_S) as waiting:
                checks = await self._look()
            if waiting.cancelled_caught:
                checks = [Check("checks", False, f"no response within {CHECK_TIMEOUT_S:.0f} s")]
            for check in checks:
                if check.engine is not None:
                    self._metrics.worker_up(check.engine, check.ok)
            self._checks = checks
            self._until = time.monotonic() + FRESH_S
        finally:
            self._round = None


def _descriptions(checks: Iterable[Check]) -> list[str]:
    return [f"{check.name}: {check.detail}" for check in checks if not check.ok]


@router.get(
    "/healthz",
    response_model=Health,
    responses=documented(500, 503),
    summary="Whether the process is alive",
)
async def healthz(request: Request) -> Response:
    """Return 200 if the process responds, and 503 if it can serve only after a restart. Engines and
    stores are not checked."""
    problem = edge_of(request).tasks.problem
    if problem is not None:
        raise Refusal(NOT_READY, f"The process must be restarted: {problem}")
    return Response(ALIVE, media_type="application/json")


@router.get(
    "/readyz",
    response_model=Ready,
    responses=documented(503),
    summary=("Whether questions can be answered"),
)
async def readyz(request: Request) -> Response:
    """Check engines and stores, at most once a second. A 503 names what is missing; `degraded`
    names problems that do not keep questions from being answered. Names of collections are shown
    only with a key that may use them, where keys are set."""
    edge_of(request).drain.check()
    readiness = edge_of(request).readiness
    missing = await readiness.missing()
    if missing:
        raise Refusal(NOT_READY, "; ".join(missing))
    if degraded := readiness.degraded(await visible_to(request)):
        content = Ready(degraded=degraded).model_dump_json()
        return Response(content, media_type="application/json")
    return Response(ALIVE, media_type="application/json")


@router.get(
    "/startupz",
    response_model=Health,
    responses=documented(503),
    summary=("Whether the service has ever been ready"),
)
async def startupz(request: Request) -> Response:
    """Return 503 until everything is ready for the first time, then 200."""
    readiness = edge_of(request).readiness
    missing = [] if readiness.was_ready else await readiness.missing()
    if missing:
        raise Refusal(NOT_READY, "; ".join(missing))
    return Response(ALIVE, media_type="application/json")


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses=documented(500),
    summary="Prometheus metrics",
)
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    content = await anyio.to_thread.run_sync(edge_of(request).runtime.metrics.render)
    return Response(content, headers={"content-type": CONTENT_TYPE})


for _path, _probe in (
    ("/healthz", healthz), ("/readyz", readyz), ("/startupz", startupz), ("/metrics", metrics)
):  # fmt: skip
    router.add_api_route(
        _path, _probe, methods=["HEAD"], response_class=Response, include_in_schema=False
    )
