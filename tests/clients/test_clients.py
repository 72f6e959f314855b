"""Strict clients, as real processes, at a server whose engine is scripted; the whole table on the
embedded default is `python -m tests.clients`."""

from __future__ import annotations

import asyncio

import pytest

from tests.clients.matrix import CELLS, CLIENTS, Client, World, row
from tests.conftest import need
from tests.support.live import answering, live
from tests.support.scripted import ScriptStep

need("mcp")
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

SLOW = "Who composed the slow opera?"


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_a_client_gets_what_it_asks_for(client: Client) -> None:
    never = asyncio.Event()
    script = [ScriptStep(match=("Task: answer", SLOW), reply="It", gate=never, times=None)]
    async with live([*script, *answering()]) as service:
        world = World(
            service.url, "Who composed the opera Norma?", "Vincenzo Bellini", "Norma", SLOW
        )
        found = await row(client, world, [cell for cell in CELLS if cell != "structured"])
    assert not {cell: wrong for cell, wrong in found.items() if wrong}
