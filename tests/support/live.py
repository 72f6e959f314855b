"""The real server on a real socket in the test's own event loop, and clients for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from blockbuster import blockbuster_ctx
from fastapi import FastAPI
from pydantic import TypeAdapter

from service.answer.events import BaseEvent, Event
from service.api.app import create_app
from service.cli.serve import Server, serving
from service.core.settings import Settings
from service.engines.base import Generator
from service.retrieval.base import Retriever
from service.telemetry.logs import configure_logging
from tests.support.asking import ScriptedRetriever
from tests.support.retrieval import open_scripted
from tests.support.scripted import ScriptedGenerator, ScriptStep

EVENT: TypeAdapter[BaseEvent] = TypeAdapter(Event)
PATIENCE_S = 30.0  # for what comes at once, on a machine that is busy with other things


@dataclass(frozen=True)
class Reply:
    """A response that was read whole."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def content_type(self) -> str:
        return self.headers["Content-Type"].partition(";")[0]

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass
class Live:
    """A running service and an HTTP client whose base URL is the service's."""

    url: str
    app: FastAPI
    server: Server
    http: aiohttp.ClientSession

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    async def request(self, method: str, path: str, **sent: Any) -> Reply:
        """Send a request, and read its response. `sent` are aiohttp's arguments."""
        async with self.http.request(method, path, **sent) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, **sent: Any) -> Reply:
        return await self.request("GET", path, **sent)

    async def post(self, path: str, **sent: Any) -> Reply:
        return await self.request("POST", path, **sent)

    async def put(self, path: str, **sent: Any) -> Reply:
        return await self.request("PUT", path, **sent)

    async def delete(self, path: str, **sent: Any) -> Reply:
        return await self.request("DELETE", path, **sent)

    async def ask(self, question: str = "Who?", **fields: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of `POST /answer`."""
        reply = await self.post("/answer", json={"question": question, **fields})
        return reply.status, reply.json()

    async def stream(self, question: str = "Who?", **fields: Any) -> list[tuple[str, Any]]:
        """Return the name and the data of every event of `POST /answer/stream`."""
        reply = await self.post("/answer/stream", json={"question": question, **fields})
        assert reply.status == 200, reply.text
        return parse_sse(reply.text)

    async def metric(self, line: str) -> float:
        """Return the value of one sample, by its name and labels as printed, or 0 if it does not
        exist."""
        for text in (await self.get("/metrics")).text.splitlines():
            if text.startswith(line + " "):
                return float(text.rsplit(" ", 1)[1])
        return 0.0


def config(data: Path | None = None, **sections: Any) -> Settings:
    """Return settings with a free port and, by default, a short drain. In the data directory
    `data`, vectors are made by hashing."""
    server = {"port": 0, "drain_s": 0.2} | sections.pop("server", {})
    if data is not None:
        retrieval = {"embedding_model": "hashing"} | sections.pop("retrieval", {})
        sections |= {"data_dir": data, "retrieval": retrieval}
    return Settings.model_validate({"server": server, **sections})


@asynccontextmanager
async def live(
    engine: Generator | Sequence[ScriptStep] | None = None,
    *,
    settings: Settings | None = None,
    retriever: Retriever | None = None,
    own_stores: bool = False,
    own_engines: bool = False,
    watched: bool = True,
) -> AsyncIterator[Live]:
    """Serve with one scripted or given engine and a fake retriever, or with those of the settings,
    and shut down gracefully.

    Service code that blocks the event loop between start and stop fails the test, if it is
    `watched`: a command that shares its process may block it.
    """
    settings = settings or config()
    if engine is None or isinstance(engine, Sequence):
        engine = ScriptedGenerator(engine or answering())
    engines = None if own_engines else {"default": engine}
    if not own_stores:
        retriever = retriever or ScriptedRetriever()
    opening = partial(open_scripted, settings, engines=engines, retriever=retriever)
    app = create_app(settings, opening)
    async with serving(app) as (server, url), aiohttp.ClientSession(url) as http:
        if not watched:
            yield Live(url, app, server, http)
            return
        configure_logging("error")
        with blockbuster_ctx("service") as detector:
            for function in detector.functions.values():  # reads the source lines of a traceback
                function.can_block_in("linecache.py", {"checkcache", "updatecache"})
                # gRPC joins its thread wherever its last channel is garbage-collected.
                function.can_block_in("threading.py", {"_wait_for_tstate_lock"})
            yield Live(url, app, server, http)


def answering(reply: str = "Vincenzo Bellini", **step: Any) -> list[ScriptStep]:
    """Return a script for any number of questions that are routed to `single` and answered."""
    return [
        ScriptStep(match="Task: route", reply="single-step question", times=None),
        ScriptStep(match="Task: relevance", reply="true", times=None),
        ScriptStep(match="Task: answer", reply=reply, times=None, **step),
        ScriptStep(match="Task: closed", reply=reply, times=None, **step),
    ]


def parse_sse(text: str) -> list[tuple[str, Any]]:
    """Return the name and the data of each complete event. Comments are skipped."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        if "data" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def typed(events: Sequence[tuple[str, Any]]) -> list[BaseEvent]:
    """Return events from the wire as the service's models."""
    return [EVENT.validate_python(data | {"event": name}) for name, data in events]


class Raw:
    """A bare socket, for tests of what arrives when, and of abrupt disconnections."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def ask(
        cls, port: int, path: str = "/answer/stream", *, limit: int = 2**16, **fields: Any
    ) -> Raw:
        """Connect and send the request without reading anything."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
        body = json.dumps({"question": "Who?", **fields}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        return cls(reader, writer)

    async def until(self, text: str, seconds: float = PATIENCE_S) -> str:
        """Read until `text` has arrived, and return all that was read."""
        got = b""
        async with asyncio.timeout(seconds):
            while text.encode() not in got:
                chunk = await self.reader.read(2**16)
                assert chunk, f"closed before {text!r}: {got.decode()!r}"
                got += chunk
        return got.decode()

    async def rest(self, seconds: float = PATIENCE_S) -> str:
        """Read until the end of a chunked body or of the connection."""
        got = b""
        async with asyncio.timeout(seconds):
            while not got.endswith(b"0\r\n\r\n"):
                chunk = await self.reader.read(2**16)
                if not chunk:
                    break
                got += chunk
        return got.decode()

    async def token_times(self, seconds: float = PATIENCE_S) -> list[tuple[float, str]]:
        """Return the monotonic time in seconds and the text of each `token` event, until `done`."""
        found: list[tuple[float, str]] = []
        name = ""
        async with asyncio.timeout(seconds):
            while name != "done":
                line = (await self.reader.readline()).decode().strip()
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: ") and name == "token":
                    found.append((time.monotonic(), json.loads(line[6:])["text"]))
        return found

    async def close(self, *, reset: bool = False) -> None:
        if reset:
            self.writer.transport.abort()
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def eventually(condition: Any, seconds: float = PATIENCE_S) -> None:
    """Wait until `condition()` is true. Fails after `seconds`."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        await asyncio.sleep(0.005)
