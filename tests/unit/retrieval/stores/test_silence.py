from __future__ import annotations

import asyncio
import time

import pytest

from service.retrieval.stores import elastic_server
from service.retrieval.stores.elastic_server import LEAST_S, Silence

pytestmark = pytest.mark.anyio

LONG_S = 2 * LEAST_S  # that a call waited


class Server:
    """Answers once `answers` is set; `out` is raised at once instead. `often` is set when it has
    been asked three times."""

    def __init__(self) -> None:
        self.asked = 0
        self.often = asyncio.Event()
        self.answers = asyncio.Event()
        self.out: Exception | None = None

    async def ask(self) -> None:
        self.asked += 1
        if self.asked >= 3:
            self.often.set()
        if self.out is not None:
            raise self.out
        await self.answers.wait()


async def started() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_says_nothing() -> None:
    """A call that was left soon, and one beside which another had its answer."""
    found = Silence(Server().ask)
    found.lost(time.monotonic())
    sent = time.monotonic() - LONG_S
    found.heard()
    found.lost(sent)
    assert not found.on


async def test_another_connection_is_tried_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_server, "ASK_S", 0.01)
    server = Server()
    found = Silence(server.ask)
    found.lost(time.monotonic() - LONG_S)
    waiting = asyncio.create_task(found.over())
    async with asyncio.timeout(20):
        await server.often.wait()
    assert found.on
    server.answers.set()
    await waiting
    assert not found.on


async def test_a_server_that_is_out_is_not_silent() -> None:
    server = Server()
    server.out = ConnectionRefusedError()
    found = Silence(server.ask)
    found.lost(time.monotonic() - LONG_S)
    await found.over()
    assert (server.asked, found.on) == (1, False)


async def test_closed_while_it_asks() -> None:
    server = Server()
    found = Silence(server.ask)
    found.lost(time.monotonic() - LONG_S)
    waiting = asyncio.create_task(found.over())
    await started()
    waiting.cancel()
    await found.aclose()
    await found.aclose()
    assert server.asked == 1
