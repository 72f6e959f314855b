"""Tokens reach a raw socket at the engine's pace: nothing on the way collects them."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time

import pytest

from tests.support.live import Raw, live
from tests.support.scripted import ScriptedGenerator, ScriptStep

pytestmark = pytest.mark.anyio
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
    late = [at - released for (at, _), released in zip(tokens, engine.released, strict=False)]
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(tokens[: len(WORDS)])]
    assert statistics.median(late) < PACE_S / 2, late
    assert sum(gap > PACE_S / 2 for gap in gaps) >= len(gaps) * 0.6, gaps


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
        await client.until(": ping\n\n")
        gate.set()
        await client.until("event: done")
        await client.close()
