"""The engine in the process computes once what prompts share at their beginning."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import EngineFailure
from service.engines.base import GenerationRequest, complete
from service.engines.batch.prefixes import BLOCK
from service.engines.transformers import LocalGenerator
from tests.support.prefixes import judgement, requests, same
from tests.support.tiny import TINY
from tests.unit.engines.conftest import OpenLocal
from tests.unit.engines.transformers.test_engine import network_of, settled

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["random", "trained"])
def model(request: pytest.FixtureRequest, tiny_model: Path) -> str:
    return str(tiny_model if request.param == "random" else TINY)


def forget(monkeypatch: pytest.MonkeyPatch, most_bytes: int = 0) -> None:
    from service.engines.transformers import engine

    monkeypatch.setattr(engine, "PREFIX_BYTES", most_bytes)


def prefixes_of(engine: LocalGenerator) -> Any:
    worker: Any = engine._worker
    return worker._engine._prefixes


class Passes:
    """Rows and tokens of each pass over prompts from now on."""

    def __init__(self, engine: LocalGenerator) -> None:
        self.shapes: list[tuple[int, int]] = []
        network = network_of(engine)
        forward = network.forward

        def watched(*args: Any, **kwargs: Any) -> Any:
            rows, tokens = kwargs["input_ids"].shape
            if tokens > 1:
                self.shapes.append((rows, tokens))
            return forward(*args, **kwargs)

        network.forward = watched

    @property
    def tokens(self) -> int:
        return sum(rows * tokens for rows, tokens in self.shapes)


async def test_a_call_gives_the_same_whatever_was_read_before(
    model: str, open_local: OpenLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests()
    engine = open_local(model=model)
    first = [await complete(engine, request) for request in asked]
    again = [await complete(engine, request) for request in reversed(asked)]
    together = await asyncio.gather(*(complete(engine, request) for request in asked))
    other = open_local(model=model)
    cold = await asyncio.gather(*(complete(other, request) for request in asked))
    forget(monkeypatch)
    forgetful = open_local(model=model)
    fresh = [await complete(forgetful, request) for request in asked]

    assert prefixes_of(engine).nbytes > 0
    assert prefixes_of(forgetful).nbytes == 0
    for number, expected in enumerate(fresh):
        for found in (first[number], again[-number - 1], together[number], cold[number]):
            same(found, expected)


async def test_only_what_is_new_in_a_prompt_is_computed(open_local: OpenLocal) -> None:
    engine = open_local(model=str(TINY))
    first = await complete(engine, judgement(1))
    passes = Passes(engine)

    second = await complete(engine, judgement(2))
    repeated = await complete(engine, judgement(2))

    assert first.usage.prompt_tokens > 6 * BLOCK
    (_, new), (_, nothing_new) = passes.shapes
    assert new < 2 * BLOCK
    assert nothing_new <= BLOCK
    same(second, repeated)


async def test_calls_that_come_together_read_what_they_share_once(open_local: OpenLocal) -> None:
    engine = open_local(model=str(TINY))
    alone = await complete(engine, GenerationRequest(prompt="The film", max_tokens=1))
    assert alone.usage.prompt_tokens < BLOCK
    passes = Passes(engine)

    done = await asyncio.gather(*(complete(engine, judgement(number)) for number in range(10)))

    length = done[0].usage.prompt_tokens
    assert passes.tokens < length + 9 * 2 * BLOCK
    assert len(passes.shapes) <= 4  # the first, those that came with it, those that came later


async def test_memory_is_bounded_and_a_short_one_harms_nothing(
    open_local: OpenLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests()
    engine = open_local(model=str(TINY))
    expected = [await complete(engine, request) for request in asked]
    blocks = len(prefixes_of(engine)._blocks)
    of_one = prefixes_of(engine).nbytes // blocks
    forget(monkeypatch, 5 * of_one + 1)
    small = open_local(model=str(TINY))

    found = await asyncio.gather(*(complete(small, request) for request in asked))

    assert of_one == 2 * 5 * 4 * BLOCK * 32 * 4  # both sides, layers, heads, tokens, size, float32
    assert prefixes_of(small).nbytes == 5 * of_one < blocks * of_one
    for one, other in zip(found, expected, strict=True):
        same(one, other)


async def test_a_failed_step_frees_the_memory(open_local: OpenLocal) -> None:
    engine = open_local(model=str(TINY))
    expected = await complete(engine, judgement(1))
    network = network_of(engine)
    forward = network.forward

    def failing(*args: Any, **kwargs: Any) -> Any:
        network.forward = forward
        raise RuntimeError("out of memory")

    network.forward = failing
    with pytest.raises(EngineFailure, match="out of memory"):
        await complete(engine, judgement(2))

    await settled(engine)
    assert prefixes_of(engine).nbytes == 0
    same(await complete(engine, judgement(1)), expected)
