"""Admission: so many run, so many wait, the rest is refused early; who left gives up its place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.api import admission as limits
from service.core.settings import Settings
from tests.api.test_bad_input import check_problem
from tests.support.live import Live, Raw, config, eventually, live
from tests.support.scripted import ScriptedGenerator, ScriptStep


@pytest.fixture(autouse=True)
def _one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING", 1)


def one_at_a_time() -> Settings:
    return config(server={"port": 0, "max_running": 1, "drain_s": 0.2})


def gated(gate: asyncio.Event) -> ScriptedGenerator:
    return ScriptedGenerator([ScriptStep(reply="Bellini", gate=gate, times=None)])


async def start(service: Live) -> asyncio.Task[Any]:
    task = asyncio.create_task(service.ask(route="direct"))
    await asyncio.sleep(0)
    return task


async def test_one_runs_one_waits_the_third_is_told_when_to_come_back() -> None:
    gate = asyncio.Event()
    async with live(gated(gate), settings=one_at_a_time()) as service:
        admission = service.app.state.admission
        first = await start(service)
        await eventually(lambda: admission.running == 1)
        second = await start(service)
        await eventually(lambda: admission.waiting == 1)
        assert await service.metric("revelator_questions_waiting") == 1
        assert await service.metric('revelator_worker_in_flight{worker="scripted"}') == 1
        for path in ("/answer", "/answer/stream"):
            response = await service.post(path, json={"question": "Who?"})
            check_problem(response, 503, "overloaded")
            assert int(response.headers["retry-after"]) >= 1
        for path in ("/healthz", "/readyz"):  # which answer while every place is taken
            assert (await service.get(path)).status == 200
        gate.set()
        assert [(await task)[0] for task in (first, second)] == [200, 200]
        assert (admission.running, admission.waiting) == (0, 0)
        assert await service.metric('revelator_worker_in_flight{worker="scripted"}') == 0
        assert await service.metric('revelator_rejected_total{reason="busy"}') == 2
        rejected = 'revelator_questions_total{loop="none",outcome="rejected",route="none"}'
        assert await service.metric(rejected) == 2
        (_, body) = await second
        assert body["timing_ms"]["queue"] > 0
        assert body["timing_ms"]["total"] >= body["timing_ms"]["queue"]


async def test_nobody_waits_longer_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WAIT_S", 0.1)
    gate = asyncio.Event()
    async with live(gated(gate), settings=one_at_a_time()) as service:
        first = await start(service)
        await eventually(lambda: service.app.state.admission.running == 1)
        status, body = await service.ask(route="direct")
        assert (status, body["type"]) == (503, "urn:revelator:problem:overloaded")
        assert service.app.state.admission.waiting == 0
        gate.set()
        assert (await first)[0] == 200


@pytest.mark.parametrize("path", ["/answer", "/answer/stream"])
async def test_a_waiter_whose_client_leaves_is_dropped_and_never_reaches_the_engine(
    path: str,
) -> None:
    gate = asyncio.Event()
    engine = gated(gate)
    async with live(engine, settings=one_at_a_time()) as service:
        admission = service.app.state.admission
        first = await start(service)
        await eventually(lambda: admission.running == 1)
        gone = await Raw.ask(service.port, path, route="direct")
        await eventually(lambda: admission.waiting == 1)
        await gone.close()
        await eventually(lambda: admission.waiting == 0)
        third = await start(service)
        await eventually(lambda: admission.waiting == 1)
        gate.set()
        assert [(await task)[0] for task in (first, third)] == [200, 200]
        assert len(engine.requests) == 2
        cancelled = 'revelator_questions_total{loop="none",outcome="cancelled",route="none"}'
        assert await service.metric(cancelled) == 1
