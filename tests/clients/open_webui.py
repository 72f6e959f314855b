"""Open WebUI in Chromium: fresh, but for its task model. A relay between it and the server keeps
the requests; `open_webui.json` holds those of one question.

`OPEN_WEBUI` is its command: `pip install open-webui==0.12.4` in an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.clients.matrix import STOP_S, World, counts, ended, until
from tests.faults.proxy import free_port

START_S, ANSWER_S, TASKS_S = 600.0, 120.0, 120.0
RECORDED = Path(__file__).parent / "open_webui.json"
TASK_MODEL = "revelator-plain"
TASKS = ("title", "tags", "follow_ups")
OWN = ("host", "content-length", "transfer-encoding")


@dataclass
class Relay:
    """Passes requests on to `to`, and keeps each with the status of its response."""

    to: str
    port: int = field(default_factory=free_port)
    seen: list[dict[str, Any]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Relay]:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        sent = {name: value for name, value in request.headers.items() if name.lower() not in OWN}
        kept: dict[str, Any] = {"path": request.path, "headers": sent}
        kept["body"] = json.loads(body) if body else None
        self.seen.append(kept)
        async with (
            aiohttp.ClientSession(auto_decompress=False) as http,
            http.request(request.method, self.to + request.path, data=body, headers=sent) as found,
        ):
            back = {name: text for name, text in found.headers.items() if name.lower() not in OWN}
            response = web.StreamResponse(status=found.status, headers=back)
            await response.prepare(request)
            async for part in found.content.iter_any():
                await response.write(part)
            kept["status"] = found.status
            await response.write_eof()
            return response

    @property
    def chats(self) -> list[dict[str, Any]]:
        """Questions of the user: of the requests, those that are no task."""
        asked = [each for each in self.seen if each["path"].endswith("/chat/completions")]
        return [each for each in asked if not task(each["body"])]

    def of_task(self, name: str) -> dict[str, Any] | None:
        return next((each for each in self.seen if task(each["body"]) == name), None)


def task(body: dict[str, Any] | None) -> str | None:
    """Which task a request is: its prompt shows a JSON object with that key."""
    text = str(body["messages"][-1]["content"]) if body and "messages" in body else ""
    return next(
        (name for name in TASKS if text.startswith("### Task") and f'"{name}"' in text), None
    )


@asynccontextmanager
async def open_webui(base: str) -> AsyncIterator[str]:
    """A fresh Open WebUI, without accounts and without the internet; its address."""
    command = os.environ["OPEN_WEBUI"]
    port = free_port()
    with tempfile.TemporaryDirectory() as data:
        settings = {
            "OPENAI_API_BASE_URL": base, "OPENAI_API_KEY": "none", "ENABLE_OLLAMA_API": "False",
            "TASK_MODEL_EXTERNAL": TASK_MODEL, "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "local",
            "DATA_DIR": data, "HOME": data, "OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1",
            "RAG_EMBEDDING_ENGINE": "openai", "PATH": os.environ["PATH"],
        }  # fmt: skip
        with (Path(data) / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                command, "serve", "--host", "127.0.0.1", "--port", str(port),
                env=settings, cwd=data, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            if not await _healthy(f"http://127.0.0.1:{port}/health", process):
                raise SystemExit(f"Open WebUI did not start: {_last(Path(data) / 'log')}")
            yield f"http://127.0.0.1:{port}"
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await ended(process, 20)


async def _healthy(url: str, process: asyncio.subprocess.Process) -> bool:
    for _ in range(int(START_S)):
        with suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.request("GET", url, timeout=aiohttp.ClientTimeout(10)):
                return True
        if process.returncode is not None:
            break
        await asyncio.sleep(1)
    return False


def _last(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


async def row_of_open_webui(world: World, pictures: str, record: bool) -> dict[str, str | None]:
    """What is wrong with each cell, None for nothing, as the page shows it."""
    from playwright.async_api import Error, async_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    async with (
        Relay(world.url).running() as relay,
        open_webui(f"http://127.0.0.1:{relay.port}/v1") as url,
        async_playwright() as playwright,
        await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]) as browser,
    ):
        tab = await browser.new_page(viewport={"width": 1200, "height": 800})
        tab.set_default_timeout(ANSWER_S * 1000)
        try:
            await tab.goto(url)
            found = await _answered(tab, world, relay, pictures)
            found["stop"] = await _stopped(tab, url, world)
        except Error as error:
            await tab.screenshot(path=f"{pictures}/open-webui-failed.png")
            return {"chat": error.message}
        if record:
            _record(relay)
        return found


async def _send(tab: Any, text: str) -> None:
    box = tab.locator("#chat-input")
    await box.wait_for()
    await tab.keyboard.press("Escape")  # the notes of the release
    await box.click()
    await tab.keyboard.type(text)
    await tab.keyboard.press("Enter")


async def _answered(tab: Any, world: World, relay: Relay, pictures: str) -> dict[str, str | None]:
    await _send(tab, world.question)
    message = tab.locator(".chat-assistant").last
    await message.get_by_text("Thought for").wait_for()
    await message.get_by_text(world.answer).last.wait_for()
    source = tab.get_by_text("1 Source").last
    shown = await _appears(source)
    await message.get_by_text("Thought for").click()
    reasoned = await _appears(message.get_by_text("Search (hybrid)"))
    wrong_tasks = await _tasks(relay)
    if shown:
        await source.click()
        shown = await _appears(tab.get_by_text("/#passage=").last)
    await tab.screenshot(path=f"{pictures}/open-webui.png")
    chat = relay.chats[0]
    return {
        "chat": wrong_tasks,
        "stream": None if reasoned and chat["body"]["stream"] else "no reasoning is shown",
        "tools": None if chat["body"].get("tools") else "it offered no tools",
        "citations": None if shown else "no source is shown",
    }


async def _appears(what: Any) -> bool:
    from playwright.async_api import TimeoutError as Missing

    try:
        await what.wait_for(timeout=20_000)
    except Missing:
        return False
    return True


async def _tasks(relay: Relay) -> str | None:
    """What is wrong with title, tags and follow-ups."""
    for _ in range(int(TASKS_S)):
        told = {name: relay.of_task(name) or {} for name in TASKS}
        wrong = [
            name
            for name, each in told.items()
            if each.get("status") != 200 or each["body"]["model"] != TASK_MODEL
        ]
        if not wrong:
            return None
        await asyncio.sleep(1)
    return f"not answered by {TASK_MODEL}: {', '.join(wrong)}"


async def _stopped(tab: Any, url: str, world: World) -> str | None:
    await tab.goto(url)
    before = (await counts(world.url))["cancelled"]
    await _send(tab, world.slow)
    if not await until(world.url, ANSWER_S, lambda now: now["running"] >= 1):
        return "no question began"
    await tab.get_by_label("Stop").last.click()
    if await until(
        world.url, STOP_S, lambda now: not now["running"] and now["cancelled"] == before + 1
    ):
        return None
    return "the server went on with the question"


def _record(relay: Relay) -> None:
    """Keep the requests of the question and of its tasks."""
    found = {"chat": relay.chats[0]} | {name: relay.of_task(name) for name in TASKS}
    kept = {
        name: {"headers": each["headers"], "body": each["body"]}
        for name, each in found.items()
        if each
    }
    RECORDED.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
