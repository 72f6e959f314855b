"""Calls of the small compiled model, which runs one after the other in a thread."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading
import time
from typing import Any

import pytest

from service.core.errors import EngineFailure, EngineTimeout, Overloaded
from service.engines import decoding as module
from service.engines.base import Completion, GenerationRequest, Message, complete
from service.engines.compiled import _memory
from service.engines.embedded import EmbeddedGenerator
from service.engines.signals import ScoreRequest, SignalGenerator
from tests.stubs.tiny_compiled import COMPILED
from tests.support.drafts import drafted, with_attention
from tests.support.prefixes import CLOSE, RULES, judgement, requests, same
from tests.unit.engines.conftest import OpenEmbedded

PROMPTS = (
    "Question: Who directed the film The Glass Orchard?\nAnswer:",
    "Question: Where was Élodie born?\nAnswer: Paris.\nQuestion: Who is John?\nAnswer: John is",
    "The",
)


def ask(text: str = "Who?", **fields: Any) -> GenerationRequest:
    return GenerationRequest(messages=(Message("user", text),), **fields)


def of_every_kind() -> list[GenerationRequest]:
    """Requests of different lengths, most of which begin alike, to sample, choose and continue."""
    asked = [ask(f"Question: {'Who ' * (3 * n + 1)}", max_tokens=5 + 3 * n) for n in range(8)]
    return [*asked, *requests(), ask("Doc", temperature=0.8, seed=7, max_tokens=12)]


@pytest.fixture
async def engine(open_embedded: OpenEmbedded) -> EmbeddedGenerator:
    made = open_embedded(COMPILED)
    await made.check()
    return made


def model_of(engine: EmbeddedGenerator) -> Any:
    return engine._thread.model


def slowed(engine: EmbeddedGenerator, wait: Any) -> None:
    """Wait before every pass."""
    network = model_of(engine).network
    run = network.run

    def slow(*args: Any) -> Any:
        wait()
        return run(*args)

    network.run = slow


def failing(engine: EmbeddedGenerator, passes: int) -> None:
    """Fail once, after this number of passes."""
    network = model_of(engine).network
    run, left = network.run, iter(range(passes))

    def fails(*args: Any) -> Any:
        if next(left, None) is not None:
            return run(*args)
        network.run = run
        raise RuntimeError("out of memory")

    network.run = fails


def read_by(engine: EmbeddedGenerator) -> list[int]:
    """Return a list that grows by the tokens of each pass over more than one."""
    network, read = model_of(engine).network, []
    run = network.run

    def watched(ids: Any) -> Any:
        read.extend([len(ids)] if len(ids) > 1 else [])
        return run(ids)

    network.run = watched
    return read


async def settled(engine: EmbeddedGenerator) -> None:
    async with asyncio.timeout(20):
        while engine.running:  # noqa: ASYNC110 (the thread sets no event)
            await asyncio.sleep(0.002)


# ---- company


async def test_a_call_gives_the_same_whatever_was_read_before_and_whoever_left(
    engine: EmbeddedGenerator,
) -> None:
    chance = random.Random(5)
    asked = of_every_kind()

    async def afresh(request: GenerationRequest) -> Completion:
        model_of(engine).forget()
        return await complete(engine, request)

    alone = [await afresh(request) for request in asked]
    numbers = [chance.randrange(len(asked)) for _ in range(60)]
    calls = [asyncio.create_task(complete(engine, asked[number])) for number in numbers]
    for call in chance.sample(calls, 25):
        await asyncio.sleep(chance.random() * 0.01)
        call.cancel()

    await asyncio.wait(calls)
    for number, call in zip(numbers, calls, strict=True):
        if not call.cancelled():
            same(call.result(), alone[number])
    await settled(engine)


async def test_running_and_waiting_are_bounded(open_embedded: OpenEmbedded) -> None:
    engine = open_embedded(COMPILED, max_concurrency=1)
    await engine.check()
    most = 0
    calls = [asyncio.create_task(complete(engine, ask(max_tokens=20))) for _ in range(40)]
    while not all(call.done() for call in calls):
        most = max(most, engine.running)
        await asyncio.sleep(0.001)
    results = [call.exception() for call in calls]

    assert most == 1
    assert 16 <= results.count(None) < 40
    assert all(error is None or isinstance(error, Overloaded) for error in results)


async def test_waiting_for_other_calls_is_no_silence(open_embedded: OpenEmbedded) -> None:
    engine = open_embedded(COMPILED, max_concurrency=1, timeout_s=1.0)
    await engine.check()
    passes = itertools.count()
    slowed(engine, lambda: time.sleep(0.12 if next(passes) < 12 else 0.0))
    first, second = await asyncio.gather(
        *(complete(engine, ask("London", max_tokens=12)) for _ in range(2))
    )
    assert first == second


async def test_silence_is_a_timeout_and_the_event_loop_runs_meanwhile(
    open_embedded: OpenEmbedded,
) -> None:
    engine = open_embedded(COMPILED, timeout_s=1.0)
    await engine.check()
    go_on, ticks = threading.Event(), 0
    slowed(engine, lambda: go_on.wait(30))
    call = asyncio.create_task(complete(engine, ask()))
    while not call.done():
        await asyncio.sleep(0.005)
        ticks += 1
    with pytest.raises(EngineTimeout, match=r"computed nothing for 1 s"):
        await call
    go_on.set()
    await settled(engine)

    assert ticks > 10
    assert (await complete(engine, ask(max_tokens=2))).usage.completion_tokens


async def test_a_failed_pass_fails_its_call_and_forgets_what_was_read(
    engine: EmbeddedGenerator,
) -> None:
    expected = await complete(engine, judgement(1))
    read = read_by(engine)
    failing(engine, 2)
    results = await asyncio.gather(
        *(complete(engine, ask(max_tokens=20)) for _ in range(2)), return_exceptions=True
    )
    assert "failed in a call: out of memory" in str(results[0])
    assert isinstance(results[1], Completion)
    read.clear()

    same(await complete(engine, judgement(1)), expected)
    assert sum(read) > 200


async def test_closing_fails_all_calls_and_waits_for_the_thread(engine: EmbeddedGenerator) -> None:
    slowed(engine, lambda: time.sleep(0.01))
    calls = [asyncio.create_task(complete(engine, ask(max_tokens=250))) for _ in range(2)]
    while not engine.running:  # noqa: ASYNC110
        await asyncio.sleep(0.001)

    await engine.aclose()

    assert not engine.running
    for call in calls:
        with pytest.raises(EngineFailure, match="closed"):
            await call


# ---- prompts


async def test_only_what_is_new_in_a_prompt_is_computed(engine: EmbeddedGenerator) -> None:
    read = read_by(engine)
    first = await complete(engine, judgement(1))
    assert sum(read) == first.usage.prompt_tokens > 200
    read.clear()

    same(await complete(engine, judgement(1)), first)
    assert read == []  # but for the last token, whose logits are needed

    await complete(engine, judgement(2))
    assert sum(read) < 40
    read.clear()
    await complete(engine, GenerationRequest(prompt="The film", max_tokens=1))
    await complete(engine, judgement(2))
    assert sum(read) > 200  # one prompt is remembered


async def test_a_prompt_in_chunks_is_the_prompt_and_leaving_ends_it(
    engine: EmbeddedGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask("Where is the river of the city? " * 10, max_tokens=10, logprobs=True)
    whole = await complete(engine, request)
    model_of(engine).forget()
    monkeypatch.setattr(module, "CHUNK", 2)
    same(await complete(engine, request), whole)

    before = engine.forward_passes
    call = asyncio.create_task(complete(engine, ask("Paris " * 400, max_tokens=8)))
    while engine.forward_passes < before + 3:  # noqa: ASYNC110 (the thread sets no event)
        await asyncio.sleep(0.001)
    call.cancel()
    await settled(engine)
    assert engine.forward_passes < before + 200  # of 252 that the whole prompt takes


async def test_a_prompt_of_100_kb_loses_its_oldest_tokens(engine: EmbeddedGenerator) -> None:
    completion = await complete(engine, ask("Paris " * 17_000, max_tokens=8))

    assert completion.usage.prompt_tokens == 512 - 8
    assert completion.usage.completion_tokens > 0
    assert (await complete(engine, ask(max_tokens=9999))).usage.completion_tokens <= 256


def resident() -> int:
    """Return the bytes of this process that are in memory, where Linux tells them."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    except FileNotFoundError:
        pytest.skip("needs Linux, which tells the memory of a process")


def test_memory_is_used_where_it_is_written() -> None:
    before = resident()
    memory = _memory((1, 64, 8192, 64))
    memory[0, :, 0] = 1
    assert memory.nbytes > 100e6
    assert resident() - before < 10e6


# ---- outputs


async def test_a_stop_string_ends_the_output_and_is_not_part_of_it(
    engine: EmbeddedGenerator,
) -> None:
    whole = (await complete(engine, ask(max_tokens=30))).text
    stop = whole[9:12]

    cut = await complete(engine, ask(max_tokens=30, stop=("never", stop)))

    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish == "stop"
    assert cut.usage.completion_tokens < 30


async def test_sampling_repeats_by_its_seed(engine: EmbeddedGenerator) -> None:
    async def sampled(seed: int) -> str:
        return (await complete(engine, ask("Paris", max_tokens=20, temperature=2, seed=seed))).text

    assert await sampled(1) == await sampled(1)
    assert len({await sampled(seed) for seed in range(5)}) > 1


async def test_choices_are_whole_labels_even_where_one_begins_another(
    engine: EmbeddedGenerator,
) -> None:
    choices = ("single", "single hop", "compound", "复杂")

    greedy = [
        (await complete(engine, ask(f"q {n}", choices=choices, max_tokens=1))).text
        for n in range(12)
    ]
    sampled = await asyncio.gather(
        *(complete(engine, ask("q", choices=choices, temperature=5.0, seed=n)) for n in range(24))
    )

    assert {*greedy, *(completion.text for completion in sampled)} <= set(choices)
    assert len({completion.text for completion in sampled}) > 1


async def test_a_judgement_takes_one_pass_where_its_first_token_decides(
    engine: EmbeddedGenerator,
) -> None:
    before = engine.forward_passes
    await complete(engine, ask(choices=("true", "false")))
    assert engine.forward_passes == before + 1


async def test_json_follows_its_schema_and_a_schema_that_is_none_fails_alone(
    engine: EmbeddedGenerator,
) -> None:
    text = {"type": "string", "maxLength": 6}
    both = {"query": text, "n": {"enum": [1, 2]}}
    schemas: list[tuple[type, dict[str, Any]]] = [
        (list, {"type": "array", "items": text, "minItems": 2, "maxItems": 3}),
        (
            dict,
            {"type": "object", "properties": both, "required": ["query", "n"],
             "additionalProperties": False},
        ),
    ]  # fmt: skip
    other = asyncio.create_task(complete(engine, ask(max_tokens=30)))
    with pytest.raises(EngineFailure, match="the JSON schema cannot be used"):
        await complete(engine, ask(json_schema={"type": "nonsense"}))
    assert (await other).usage.completion_tokens > 0
    for kind, schema in schemas:
        for n in range(4):
            asked = ask(json_schema=schema, max_tokens=120, temperature=float(n), seed=n)
            completion = await complete(engine, asked)
            value = json.loads(completion.text)
            assert completion.finish == "stop"
            assert isinstance(value, kind)
            assert len(value) >= 2


async def test_constraints_can_be_switched_off(open_embedded: OpenEmbedded) -> None:
    engine = open_embedded(COMPILED, constrained="none")

    completion = await complete(engine, ask(choices=("true", "false"), max_tokens=5))

    assert not engine.capabilities.choices
    assert completion.usage.completion_tokens > 1


# ---- signals


async def test_signals_reach_over_what_is_remembered(engine: EmbeddedGenerator) -> None:
    assert isinstance(engine, SignalGenerator)
    request = with_attention(RULES + "The film", 6)

    fresh, known = await drafted(engine, request), await drafted(engine, request)

    assert [token.id for token in known.tokens] == [token.id for token in fresh.tokens]
    for token, other in zip(known.tokens, fresh.tokens, strict=True):
        assert token.entropy == pytest.approx(other.entropy, abs=CLOSE)
        assert token.row.tolist() == pytest.approx(other.row.tolist(), abs=CLOSE)


async def test_a_stop_string_ends_a_draft(engine: EmbeddedGenerator) -> None:
    whole = await drafted(engine, with_attention(PROMPTS[0], 16, signals="entropy"))
    stop = whole.text[6:8]
    made = await drafted(engine, with_attention(PROMPTS[0], 16, stop=(stop,)))
    end = whole.text.index(stop)
    assert made.text == whole.text[:end]
    assert all(token.span[0] < end and token.span[1] <= end for token in made.tokens)
    assert [token.id for token in made.tokens] == [t.id for t in whole.tokens][: len(made.tokens)]
    assert all(len(token.row) for token in made.tokens)
    assert not any(len(token.row) for token in whole.tokens)


async def test_leaving_a_draft_ends_it(engine: EmbeddedGenerator) -> None:
    before = engine.forward_passes
    made = await drafted(engine, with_attention(PROMPTS[0], 200), most_deltas=1)
    rows = made.rows([0])
    assert rows.rows[0].token == len(made.context) == len(rows.spans) - len(made.tokens)
    await settled(engine)
    assert engine.forward_passes < before + 100


async def test_what_cannot_be_scored_is_told(engine: EmbeddedGenerator) -> None:
    with pytest.raises(EngineFailure, match="0 tokens cannot be scored"):
        await engine.score(ScoreRequest(text=""))
    with pytest.raises(EngineFailure, match="cannot be scored; the length must be 1 to 512 tokens"):
        await engine.score(ScoreRequest(text="a b " * 600))
    scoring = await engine.score(ScoreRequest(text="a", bos=True))
    assert len(scoring.tokens) == 2
    assert await engine.token_spans("") == ()
    assert await engine.token_spans("a b") == ((0, 1), (1, 3))
