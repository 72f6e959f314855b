"""The embedded engine computes once what prompts share at their beginning."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.core.errors import EngineFailure
from service.engines.base import GenerationRequest, complete
from service.engines.batch import engine as module
from service.engines.batch.engine import BLOCK
from service.engines.embedded import EmbeddedGenerator
from service.engines.signals import ContextRows, DraftToken, SignalRequest
from tests.stubs.tiny_compiled import COMPILED
from tests.support.prefixes import CLOSE, RULES, judgement, requests, same
from tests.unit.engines.conftest import OpenEmbedded

pytestmark = pytest.mark.anyio
OF_A_BLOCK = 2 * 2 * 2 * BLOCK * 16 * 4  # both sides, layers, heads, tokens, size, float32


def engine_of(generator: EmbeddedGenerator) -> Any:
    worker: Any = generator._worker
    return worker._engine


async def opened(open_embedded: OpenEmbedded, monkeypatch: pytest.MonkeyPatch, room: int) -> Any:
    monkeypatch.setattr(module, "PREFIX_BYTES", room)
    generator = open_embedded(COMPILED)
    await generator.check()
    return generator


async def test_a_call_gives_the_same_whatever_was_read_before(
    open_embedded: OpenEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests()
    forgetful = await opened(open_embedded, monkeypatch, 0)
    fresh = [await complete(forgetful, request) for request in asked]
    engine = await opened(open_embedded, monkeypatch, 2**20)
    first = [await complete(engine, request) for request in asked]
    again = [await complete(engine, request) for request in reversed(asked)]
    cold = await opened(open_embedded, monkeypatch, 2**20)
    together = await asyncio.gather(*(complete(cold, request) for request in asked))

    assert engine_of(engine)._prefixes.nbytes > 0
    assert engine_of(forgetful)._prefixes.nbytes == 0
    for number, expected in enumerate(fresh):
        for found in (first[number], again[-number - 1], together[number]):
            same(found, expected)


async def test_only_what_is_new_in_a_prompt_is_computed(
    open_embedded: OpenEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = await opened(open_embedded, monkeypatch, 2**20)
    first = await complete(generator, judgement(1))
    network = engine_of(generator)._network
    run, read = network.run, []

    def watched(slot: int, ids: Any, *others: Any) -> Any:
        read.extend([ids.shape[1]] if ids.shape[1] > 1 else [])
        return run(slot, ids, *others)

    monkeypatch.setattr(network, "run", watched)
    same(await complete(generator, judgement(1)), first)
    await complete(generator, judgement(2))

    assert first.usage.prompt_tokens > 6 * BLOCK
    assert read[0] <= BLOCK
    assert read[1] < 2 * BLOCK


async def test_memory_is_bounded_and_a_short_one_harms_nothing(
    open_embedded: OpenEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests()
    roomy = await opened(open_embedded, monkeypatch, 2**20)
    expected = [await complete(roomy, request) for request in asked]
    monkeypatch.setattr(module, "MOST_SHARES", 1)
    small = await opened(open_embedded, monkeypatch, 5 * OF_A_BLOCK + 1)

    found = await asyncio.gather(*(complete(small, request) for request in asked))

    assert engine_of(small)._prefixes.nbytes == 5 * OF_A_BLOCK < engine_of(roomy)._prefixes.nbytes
    for one, other in zip(found, expected, strict=True):
        same(one, other)


async def test_more_is_kept_while_more_calls_run(
    open_embedded: OpenEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = 3 * OF_A_BLOCK
    monkeypatch.setattr(module, "STEPS", 4)
    generator = await opened(open_embedded, monkeypatch, share)
    prompts = [f"{number} {RULES}" for number in range(9)]

    async def ask(prompt: str) -> None:
        await complete(generator, GenerationRequest(prompt=prompt, max_tokens=24))

    await asyncio.gather(*(ask(prompt) for prompt in prompts))
    together = engine_of(generator)._prefixes.nbytes
    await ask("The film")

    assert share < together <= module.MOST_SHARES * share
    assert engine_of(generator)._prefixes.nbytes == share


async def test_attention_reaches_over_known_blocks(
    open_embedded: OpenEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = await opened(open_embedded, monkeypatch, 2**20)
    request = SignalRequest(RULES + "The film", 6, attention=True)

    async def drafted() -> tuple[list[DraftToken], ContextRows]:
        async with generator.signals(request) as call:
            tokens = [token async for delta in call for token in delta.tokens]
            return tokens, await call.rows(range(len(tokens)))

    (fresh, expected), (known, found) = await drafted(), await drafted()

    assert engine_of(generator)._prefixes.nbytes > 0
    assert [token.id for token in known] == [token.id for token in fresh]
    for token, other in zip(known, fresh, strict=True):
        assert token.entropy == pytest.approx(other.entropy, abs=CLOSE)
    for row, other_row in zip(found.rows, expected.rows, strict=True):
        assert row.weights == pytest.approx(other_row.weights, abs=CLOSE)


async def test_a_failed_step_frees_the_memory(
    open_embedded: OpenEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = await opened(open_embedded, monkeypatch, 2**20)
    expected = await complete(generator, judgement(1))
    network = engine_of(generator)._network
    run = network.run

    def failing(*args: Any) -> Any:
        network.run = run
        raise RuntimeError("out of memory")

    network.run = failing
    with pytest.raises(EngineFailure, match="out of memory"):
        await complete(generator, judgement(2))

    assert engine_of(generator)._prefixes.nbytes == 0
    same(await complete(generator, judgement(1)), expected)
