"""Strict clients, as real processes, at a server whose engine is scripted, and the requests that
Open WebUI made; all of them on the embedded default: `python -m tests.clients`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.matrix import CLIENTS, Client, World, row
from tests.conftest import need
from tests.support.live import answering, config, live
from tests.support.scripted import ScriptStep

need("mcp")

QUESTION, SLOW = "Who composed the opera Norma?", "Who composed the slow opera?"
TASK_MODEL = "revelator-plain"
TASKS = ("title", "tags", "follow_ups")
# Open WebUI 0.12.4 made these requests of one question, through a relay.
RECORDED = Path(__file__).parent / "open_webui.json"
WEBUI: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_a_client_gets_what_it_asks_for(client: Client) -> None:
    never = asyncio.Event()
    script = [
        ScriptStep(match=("Task: answer", SLOW), reply="It", gate=never, times=None),
        ScriptStep(match="Task: structure", reply='{"answer": "Vincenzo Bellini"}', times=None),
    ]
    async with live([*script, *answering()]) as service:
        world = World(service.url, QUESTION, "Vincenzo Bellini", "Norma", SLOW)
        found = await row(client, world)
    assert not {cell: wrong for cell, wrong in found.items() if wrong}


async def test_a_chat_of_open_webui_is_answered() -> None:
    """What comes back is read as its backend reads it: source, reasoning and text of each line."""
    sent = WEBUI["chat"]
    assert len(sent["body"]["tools"]) > 20
    settings = config(server={"keys": ["none"]})
    async with live(settings=settings) as service:
        models = await service.get("/v1/models", headers=sent["headers"])
        names = {model["id"] for model in models.json()["data"]}
        response = await service.post(
            "/v1/chat/completions", json=sent["body"], headers=sent["headers"]
        )
        assert response.content_type == "text/event-stream"
        lines = [line for line in response.text.splitlines() if line]
        address = service.url
    assert {sent["body"]["model"], TASK_MODEL} <= names
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line[0] == "d"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    sources = [each for delta in deltas for each in delta.get("annotations") or []]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Vincenzo Bellini"
    assert "Search (hybrid)" in "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert sources[0]["url_citation"]["url"].startswith(f"{address}/#passage=")


@pytest.mark.parametrize("task", TASKS)
async def test_a_task_of_open_webui_goes_to_the_model_alone(task: str) -> None:
    sent = WEBUI[task]
    reply = json.dumps({task: "Opera"})
    async with live([ScriptStep(match="### Task:", reply=reply)]) as service:
        response = await service.post(
            "/v1/chat/completions", json=sent["body"], headers=sent["headers"]
        )
        body = response.json()
    assert (response.status, body["choices"][0]["message"]["content"]) == (200, reply)
