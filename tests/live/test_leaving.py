"""Tokens reach a client at the engine's pace, and where it leaves, the engine stops.

It may leave in every way a server can see. Each case once on the scripted engine and once over
HTTP, where calls are counted at the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from service.core.domain import Passage
from service.core.settings import EngineSettings
from service.engines.factory import open_generator
from tests.stubs.openai_server import StubServer
from tests.support.asking import ScriptedRetriever
from tests.support.live import Live, Raw, answering, eventually, live
from tests.support.scripted import ScriptedGenerator, ScriptStep

WITHIN_S = 20.0  # a moment on an idle machine; an engine that goes on takes a minute or more
LONG = "word " * 20_000


@dataclass
class Engine:
    """A live service, and how many calls run and were cut off at its engine."""

    service: Live
    running: Callable[[], int]
    aborted: Callable[[], int]
    mend: Callable[[], None]


@asynccontextmanager
async def scripted(reply: str, delay: float) -> AsyncIterator[Engine]:
    slow = ScriptStep(reply=reply, delay=delay)
    engine = ScriptedGenerator([slow, ScriptStep(reply="Bellini", times=None)])
    async with live(engine) as service:
        yield Engine(service, lambda: engine.running, lambda: engine.aborted, lambda: None)


@asynccontextmanager
async def over_http(reply: str, delay: float) -> AsyncIterator[Engine]:
    async with StubServer(reply=reply, token_delay=delay) as stub:
        settings = EngineSettings(kind="openai", urls=[stub.url], model="stub-model")

        def mend() -> None:
            stub.reply, stub.token_delay = "Bellini", 0.0

        engine = open_generator("default", settings)
        try:
            async with live(engine) as service:
                yield Engine(service, lambda: stub.running, lambda: stub.aborted, mend)
        finally:
            await engine.aclose()


ENGINES = pytest.mark.parametrize("engine", [scripted, over_http], ids=["scripted", "http"])


async def check_stopped(engine: Engine, client: Raw, *, reset: bool = False) -> None:
    """Leave; all calls end in time; places and metrics are right; the next question works."""
    await client.close(reset=reset)
    await eventually(lambda: engine.running() == 0, WITHIN_S)
    await eventually(lambda: engine.aborted() == 1)
    await eventually(lambda: engine.service.app.state.admission.running == 0)
    name = 'revelator_questions_total{loop="none",outcome="cancelled",route="direct"}'
    assert await engine.service.metric(name) == 1
    assert await engine.service.metric("revelator_questions_in_flight") == 0
    engine.mend()
    status, body = await engine.service.ask(route="direct")
    assert (status, body["answer"]) == (200, "Bellini")


@ENGINES
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_the_client_closes_while_tokens_are_coming(
    engine: Callable[..., AsyncIterator[Engine]], reset: bool
) -> None:
    async with engine(LONG, 0.02) as running:  # type: ignore[attr-defined]
        client = await Raw.ask(running.service.port, route="direct")
        await client.until("event: token")
        assert running.running() == 1
        await check_stopped(running, client, reset=reset)


@ENGINES
async def test_the_client_closes_while_the_engine_is_silent(
    engine: Callable[..., AsyncIterator[Engine]],
) -> None:
    async with engine("never", 60.0) as running:  # type: ignore[attr-defined]
        client = await Raw.ask(running.service.port, route="direct")
        await client.until("event: step")
        await eventually(lambda: running.running() == 1)
        await check_stopped(running, client)


async def test_the_client_stops_reading_and_then_closes() -> None:
    """Both sockets' buffers are full, so the server hangs in a send when the client goes."""
    big = [("x" * 50_000) + " " for _ in range(400)]
    engine = ScriptedGenerator(
        [ScriptStep(reply=big, delay=0.0005), ScriptStep(reply="Bellini", times=None)]
    )
    async with live(engine) as service:
        running = Engine(service, lambda: engine.running, lambda: engine.aborted, lambda: None)
        client = await Raw.ask(service.port, limit=1024, route="direct")
        await client.until("event: start")
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await _until_stuck(service)
        assert engine.running == 1
        await check_stopped(running, client, reset=True)


async def _until_stuck(service: Live) -> None:
    """Until bytes wait in the server and no more are added."""
    waiting = -1
    async with asyncio.timeout(10):
        while waiting <= 0 or waiting != _waiting(service):
            waiting = _waiting(service)
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("path", ["/answer", "/answer/stream"])
async def test_the_client_closes_while_ten_judgements_run(path: str) -> None:
    passages = [Passage(f"p{number}", "T", f"Text {number}.") for number in range(10)]
    script = [
        ScriptStep(match="Task: relevance", reply="true", delay=60.0, times=10),
        *answering("Bellini"),
    ]
    engine = ScriptedGenerator(script)
    async with live(engine, retriever=ScriptedRetriever({"": passages})) as service:
        client = await Raw.ask(service.port, path, route="single")
        await eventually(lambda: engine.running == 10)
        await client.close()
        await eventually(lambda: engine.running == 0, WITHIN_S)
        assert engine.aborted == 10
        await eventually(lambda: service.app.state.admission.running == 0)
        status, body = await service.ask(route="single")
        assert (status, body["answer"]) == (200, "Bellini")


def _waiting(service: Live) -> int:
    connections = service.server.server_state.connections
    return sum(each.transport.get_write_buffer_size() for each in connections)


@ENGINES
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "writing"])
async def test_the_client_of_a_plain_answer_leaves(
    engine: Callable[..., AsyncIterator[Engine]], silent: bool
) -> None:
    async with engine(LONG, 60.0 if silent else 0.02) as running:  # type: ignore[attr-defined]
        client = await Raw.ask(running.service.port, "/answer", route="direct")
        await eventually(lambda: running.running() == 1)
        await asyncio.sleep(0.1)
        await check_stopped(running, client)


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "writing"])
@pytest.mark.parametrize("path", ["/answer", "/answer/stream"])
async def test_the_client_leaves_while_its_next_request_waits(path: str, silent: bool) -> None:
    async with scripted(LONG, 60.0 if silent else 0.02) as running:
        client = await Raw.ask(running.service.port, path, route="direct")
        await eventually(lambda: running.running() == 1)
        client.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connections = running.service.server.server_state.connections
        await eventually(lambda: any(each.pipeline for each in connections))
        await check_stopped(running, client)


async def test_a_client_that_never_reads_loses_its_answer_not_the_server_s_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.api.answer.STALLED_S", 0.2)
    big = [("x" * 50_000) + " " for _ in range(400)]
    engine = ScriptedGenerator([ScriptStep(reply=big, delay=0.0005)])
    async with live(engine) as service:
        client = await Raw.ask(service.port, limit=1024, route="direct")
        await client.until("event: start")
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await eventually(lambda: engine.running == 1)
        await eventually(lambda: engine.running == 0)
        assert service.app.state.admission.running == 0
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        text = await client.rest()
        assert "urn:revelator:problem:client-stalled" in text
        assert "event: done" in text[-400:]
        await client.close()


async def test_a_hundred_clients_that_leave_at_random_leave_nothing_behind() -> None:
    script = [ScriptStep(reply=LONG, delay=0.001, times=None)]
    engine = ScriptedGenerator(script)
    async with live(engine) as service:
        for number in range(100):
            path = "/answer" if number % 4 == 0 else "/answer/stream"
            client = await Raw.ask(service.port, path, route="direct")
            await asyncio.sleep((number % 10) / 1000)
            await client.close(reset=number % 2 == 0)
        await eventually(lambda: engine.running == 0)
        await eventually(lambda: service.app.state.admission.running == 0)
        assert await service.metric("revelator_questions_in_flight") == 0


PACE_S = 0.1
WORDS = [f"w{number} " for number in range(20)]


class Clocked(ScriptedGenerator):
    """Notes when each piece was released."""

    def __init__(self) -> None:
        super().__init__([ScriptStep(reply=WORDS, delay=PACE_S, times=None)])
        self.released: list[float] = []

    async def stream(self, request):  # type: ignore[no-untyped-def]
        async for delta in super().stream(request):
            if delta.text:
                self.released.append(time.monotonic())
            yield delta


async def test_tokens_arrive_as_they_are_released() -> None:
    engine = Clocked()
    async with live(engine) as service:
        client = await Raw.ask(service.port, route="direct")
        arrived = await client.token_times()
        await client.close()
    tokens = [(at, text) for at, text in arrived if text.strip()]
    assert len(tokens) >= len(WORDS)
    # Before the next one is released, whatever the machine's pace is: tokens that were held back,
    # for the next one or to the end, would all come after it.
    pairs = zip(tokens, engine.released[1:], strict=False)
    held_back = [text for (at, text), released in pairs if at >= released]
    assert len(held_back) < len(WORDS) / 4, held_back


async def test_the_first_event_comes_before_the_engine_has_said_anything() -> None:
    gate = asyncio.Event()
    engine = ScriptedGenerator([ScriptStep(reply="Bellini", gate=gate)])
    async with live(engine) as service:
        client = await Raw.ask(service.port, route="direct")
        text = await client.until("event: step")
        assert "event: start" in text
        assert "event: token" not in text
        gate.set()
        await client.until("event: done")
        await client.close()


async def test_a_silent_engine_s_stream_is_kept_open_by_comments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.api.wire.PAUSE_S", 0.1)
    gate = asyncio.Event()
    engine = ScriptedGenerator([ScriptStep(reply="Bellini", gate=gate)])
    async with live(engine) as service:
        client = await Raw.ask(service.port, route="direct")
        for _ in range(2):
            await client.until(": ping\n\n")
        gate.set()
        await client.until("event: done")
        await client.close()
