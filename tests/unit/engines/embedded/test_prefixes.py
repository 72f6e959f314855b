"""The embedded engine reads a prompt from where it differs from the one before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.core.errors import EngineFailure
from service.engines.base import Completion, GenerationRequest, complete
from service.engines.embedded import EmbeddedGenerator
from service.engines.signals import ContextRows, DraftToken, SignalRequest
from tests.stubs.tiny_compiled import COMPILED
from tests.support.prefixes import CLOSE, RULES, judgement, requests, same
from tests.unit.engines.conftest import OpenEmbedded

pytestmark = pytest.mark.anyio


def network_of(engine: EmbeddedGenerator) -> Any:
    batch: Any = engine._batch
    return batch.network


async def watched(engine: EmbeddedGenerator, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the tokens of each pass over more than one."""
    await engine.check()
    network, read = network_of(engine), []
    run = network.run

    def run_watched(slot: int, ids: Any, *others: Any) -> Any:
        read.extend([ids.shape[1]] if ids.shape[1] > 1 else [])
        return run(slot, ids, *others)

    monkeypatch.setattr(network, "run", run_watched)
    return read


async def test_a_call_gives_the_same_whatever_was_read_before(open_embedded: OpenEmbedded) -> None:
    asked = requests()
    engine = open_embedded(COMPILED)
    await engine.check()

    async def afresh(request: GenerationRequest) -> Completion:
        network_of(engine).forget()
        return await complete(engine, request)

    fresh = [await afresh(request) for request in asked]
    again = [await complete(engine, request) for request in reversed(asked)]
    together = await asyncio.gather(*(complete(engine, request) for request in asked))

    for number, expected in enumerate(fresh):
        for found in (again[-number - 1], together[number]):
            same(found, expected)


async def test_only_what_is_new_in_a_prompt_is_computed(
    open_embedded: OpenEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_embedded(COMPILED)
    read = await watched(engine, monkeypatch)
    first = await complete(engine, judgement(1))
    whole = first.usage.prompt_tokens
    assert sum(read) == whole > 200
    read.clear()

    same(await complete(engine, judgement(1)), first)
    assert read == []  # but for the last token, whose logits are needed

    await complete(engine, judgement(2))
    assert sum(read) < 40
    read.clear()
    await complete(engine, GenerationRequest(prompt="The film", max_tokens=1))
    await complete(engine, judgement(2))
    assert sum(read) > 200  # one prompt is remembered


async def test_attention_reaches_over_what_is_remembered(open_embedded: OpenEmbedded) -> None:
    engine = open_embedded(COMPILED)
    request = SignalRequest(RULES + "The film", 6, attention=True)

    async def drafted() -> tuple[list[DraftToken], ContextRows]:
        async with engine.signals(request) as call:
            tokens = [token async for delta in call for token in delta.tokens]
            return tokens, await call.rows(range(len(tokens)))

    (fresh, expected), (known, found) = await drafted(), await drafted()

    assert [token.id for token in known] == [token.id for token in fresh]
    for token, other in zip(known, fresh, strict=True):
        assert token.entropy == pytest.approx(other.entropy, abs=CLOSE)
    for row, other_row in zip(found.rows, expected.rows, strict=True):
        assert row.weights == pytest.approx(other_row.weights, abs=CLOSE)


async def test_a_failed_step_forgets(
    open_embedded: OpenEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_embedded(COMPILED)
    read = await watched(engine, monkeypatch)
    expected = await complete(engine, judgement(1))
    network = network_of(engine)
    run = network.run

    def failing(*args: Any) -> Any:
        network.run = run
        raise RuntimeError("out of memory")

    network.run = failing
    with pytest.raises(EngineFailure, match="out of memory"):
        await complete(engine, judgement(2))
    read.clear()

    same(await complete(engine, judgement(1)), expected)
    assert sum(read) > 200


def resident() -> int:
    """Return the bytes of this process that are in memory, where Linux tells them."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    except FileNotFoundError:
        pytest.skip("needs Linux, which tells the memory of a process")


async def test_memory_is_used_for_what_is_in_a_slot_and_freed_with_it(
    open_embedded: OpenEmbedded,
) -> None:
    engine = open_embedded(COMPILED)
    await engine.check()
    network = network_of(engine)
    before = resident()
    for slot in range(network.slots):
        for cache in network._cache:
            cache[slot] = 1
    held = network.slots * network.context * network.position_bytes
    assert resident() - before > 0.9 * held
    for slot in range(1, network.slots):
        network.free(slot)
    assert resident() - before < 0.3 * held
    assert all((cache[0] == 1).all() for cache in network._cache)
