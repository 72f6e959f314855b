"""A service whose workers all go, and come back, seen over HTTP."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any
from unittest import mock

import pytest

from service.core.settings import EngineSettings
from service.engines.factory import open_generator
from service.engines.pool import workers as limits
from service.engines.pool.workers import PoolLimits
from tests.stubs.openai_server import StubServer
from tests.support.live import Live, live

pytestmark = pytest.mark.anyio


async def until_ready(service: Live, status: int) -> str:
    async with asyncio.timeout(20):
        while True:
            response = await service.get("/readyz")
            if response.status == status:
                return response.text
            await asyncio.sleep(0.1)


def reply(body: dict[str, Any]) -> str:
    choices = body.get("structured_outputs", {}).get("choice")
    return str(choices[0]) if choices else "Catania"


async def test_all_workers_down_then_up_again() -> None:
    async with StubServer(reply=reply, owned_by="vllm") as worker:
        settings = EngineSettings(kind="vllm", urls=[worker.url])
        quick = PoolLimits(probe_s=0.2, outage_s=0.2)
        with mock.patch.object(limits, "LIMITS", quick):
            engine = open_generator("default", settings)
        async with aclosing(engine), live(engine) as service:
            await until_ready(service, 200)
            assert (await service.ask(route="single"))[0] == 200

            worker.health = 500
            assert "/health answered 500" in await until_ready(service, 503)
            body = {"question": "Who?", "route": "single"}
            response = await service.post("/answer", json=body)
            problem = response.json()
            assert (response.status, response.headers["retry-after"]) == (503, "5")
            assert problem["type"] == "urn:revelator:problem:engine-unavailable"
            assert "no worker of engine 'default' can answer" in problem["detail"]

            worker.health = 200
            await until_ready(service, 200)
            assert (await service.ask(route="single"))[1]["answer"] == "Catania"
