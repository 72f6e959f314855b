from __future__ import annotations

import asyncio
import json
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from service.core.concurrency import closing
from service.core.errors import EngineFailure, EngineTimeout, Overloaded
from service.core.settings import EngineSettings
from service.engines.base import Delta, GenerationRequest, Message, complete
from service.engines.local import LocalGenerator
from service.engines.output import Detokenizer
from tests.unit.engines.conftest import OpenLocal

pytestmark = pytest.mark.anyio


def ask(text: str = "Who?", **fields: Any) -> GenerationRequest:
    return GenerationRequest(messages=(Message("user", text),), **fields)


def mixed_requests() -> list[GenerationRequest]:
    requests = [ask(f"Question: {'Who ' * (3 * n + 1)}", max_tokens=5 + 3 * n) for n in range(8)]
    requests += [ask("Doc", temperature=0.8, seed=n, max_tokens=12) for n in range(3)]
    requests += [ask("Doc: Paris", choices=("true", "false"), logprobs=True)]
    requests += [GenerationRequest(prompt="The film " * 20, max_tokens=9, logprobs=True)]
    return requests


async def settled(engine: LocalGenerator) -> None:
    async with asyncio.timeout(20):
        while engine.running or engine.waiting:  # noqa: ASYNC110 (the thread sets no event)
            await asyncio.sleep(0.002)


def network_of(engine: LocalGenerator) -> Any:
    batch: Any = engine._batch
    return batch.network


async def test_a_call_gives_the_same_alone_and_in_any_company(open_local: OpenLocal) -> None:
    engine = open_local()
    requests = mixed_requests()
    alone = [await complete(engine, request) for request in requests]

    together = await asyncio.gather(*(complete(engine, request) for request in requests))
    staggered = []
    for request in requests:
        staggered.append(asyncio.ensure_future(complete(engine, request)))
        await asyncio.sleep(0.003)
    later = await asyncio.gather(*staggered)

    for one, other, third in zip(alone, together, later, strict=True):
        assert (one.text, one.finish, one.usage) == (other.text, other.finish, other.usage)
        assert (one.text, one.usage) == (third.text, third.usage)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


async def test_greedy_tokens_and_logprobs_are_those_of_transformers(
    open_local: OpenLocal, tiny_model: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network: Any = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model)
    engine = open_local()
    for text in ["Who?", "Question: where was the director of the film born?"]:
        prompt = [1, *tokenizer(text + "\n", add_special_tokens=False).input_ids]
        ids = list(prompt)
        logprob = 0.0
        with torch.inference_mode():
            for _ in range(20):
                scores = network(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
                ids.append(int(scores.argmax()))
                logprob += float(scores.max())
                if ids[-1] == 2:
                    break
        new = ids[len(prompt) :]

        got = await complete(engine, ask(text, max_tokens=20, logprobs=True))

        assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (len(prompt), len(new))
        detokenizer = Detokenizer(tokenizer.backend_tokenizer)
        assert got.text == "".join(map(detokenizer.feed, new)) + detokenizer.flush()
        assert got.logprob == pytest.approx(logprob, abs=1e-3)


async def test_a_stop_string_ends_the_output_and_is_not_part_of_it(open_local: OpenLocal) -> None:
    engine = open_local()
    whole = (await complete(engine, ask(max_tokens=30))).text
    stop = whole[9:12]

    cut = await complete(engine, ask(max_tokens=30, stop=("never", stop)))

    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish == "stop"
    assert cut.usage.completion_tokens < 30


async def test_choices_are_whole_labels_even_where_one_begins_another(
    open_local: OpenLocal,
) -> None:
    engine = open_local()
    choices = ("single", "single hop", "compound", "复杂")

    texts = [
        (await complete(engine, ask(f"q {n}", choices=choices, max_tokens=1))).text
        for n in range(12)
    ]
    sampled = await asyncio.gather(
        *(
            complete(engine, ask("q", choices=choices, temperature=5.0, seed=n, logprobs=True))
            for n in range(24)
        )
    )

    assert set(texts) <= set(choices)
    assert {completion.text for completion in sampled} <= set(choices)
    assert len({completion.text for completion in sampled}) > 1
    assert all(c.logprob is not None and c.logprob < 0 for c in sampled)


async def test_a_judgement_takes_one_pass_where_its_first_token_decides(
    open_local: OpenLocal,
) -> None:
    engine = open_local()
    await complete(engine, ask(choices=("true", "false")))
    before = engine.forward_passes

    await complete(engine, ask(choices=("true", "false")))

    assert engine.forward_passes == before + 1


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "array",
            "items": {"type": "string", "maxLength": 6},
            "minItems": 2,
            "maxItems": 3,
        },
        {
            "type": "object",
            "properties": {"query": {"type": "string", "maxLength": 9}, "n": {"enum": [1, 2]}},
            "required": ["query", "n"],
            "additionalProperties": False,
        },
    ],
)
async def test_json_follows_its_schema(open_local: OpenLocal, schema: dict[str, Any]) -> None:
    engine = open_local()

    for n in range(4):
        completion = await complete(
            engine,
            ask(f"q {n}", json_schema=schema, max_tokens=120, temperature=float(n), seed=n),
        )
        value = json.loads(completion.text)
        assert completion.finish == "stop"
        assert isinstance(value, list if schema["type"] == "array" else dict)
        assert len(value) >= 2


async def test_a_schema_that_is_none_fails_its_call_alone(open_local: OpenLocal) -> None:
    engine = open_local()
    other = asyncio.ensure_future(complete(engine, ask(max_tokens=30)))

    with pytest.raises(EngineFailure, match="the JSON schema cannot be used"):
        await complete(engine, ask(json_schema={"type": "nonsense"}))

    assert (await other).usage.completion_tokens > 0


async def test_sampling_repeats_by_its_seed(open_local: OpenLocal) -> None:
    engine = open_local()
    request = [ask(temperature=1.0, seed=seed, max_tokens=12) for seed in (1, 1, 2)]

    first, same, other = [(await complete(engine, r)).text for r in request]

    assert first == same != other


@pytest.mark.parametrize("way", ["close", "cancel"])
async def test_leaving_stops_the_forward_passes(open_local: OpenLocal, way: str) -> None:
    engine = open_local()
    stream = engine.stream(ask(max_tokens=250))
    first: asyncio.Task[Delta] = asyncio.ensure_future(anext(stream))
    await first
    if way == "close":
        await stream.aclose()
    else:
        task = asyncio.ensure_future(complete(engine, ask(max_tokens=250)))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        await stream.aclose()
    left_at = engine.forward_passes
    await settled(engine)

    assert engine.forward_passes <= left_at + 2
    assert (await complete(engine, ask(max_tokens=3))).usage.completion_tokens <= 3


async def test_one_row_leaves_and_the_others_go_on(open_local: OpenLocal) -> None:
    engine = open_local()
    expected = (await complete(engine, ask("stays", max_tokens=40))).text
    staying = asyncio.ensure_future(complete(engine, ask("stays", max_tokens=40)))
    async with closing(engine.stream(ask("a much longer prompt that leaves", max_tokens=200))) as s:
        await anext(s)

    assert (await staying).text == expected


async def test_a_failed_step_fails_its_call_and_the_next_works(open_local: OpenLocal) -> None:
    engine = open_local()
    await engine.check()
    network = network_of(engine)
    forward, calls = network.forward, 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("out of memory")
        return forward(*args, **kwargs)

    network.forward = failing
    results = await asyncio.gather(
        *(complete(engine, ask(max_tokens=20)) for _ in range(3)), return_exceptions=True
    )

    assert isinstance(results[0], EngineFailure)
    assert "failed in a step: RuntimeError: out of memory" in str(results[0])
    assert not any(isinstance(result, BaseException) for result in results[1:])
    assert (await complete(engine, ask(max_tokens=4))).usage.completion_tokens


async def test_waiting_is_bounded_and_running_too(open_local: OpenLocal) -> None:
    engine = open_local(max_concurrency=1)
    await engine.check()
    most = 0
    calls = [asyncio.ensure_future(complete(engine, ask(max_tokens=20))) for _ in range(40)]
    while not all(call.done() for call in calls):
        most = max(most, engine.running)
        await asyncio.sleep(0.001)
    results = [call.exception() for call in calls]

    assert most == 1
    assert 16 <= results.count(None) < 40
    assert all(error is None or isinstance(error, Overloaded) for error in results)


async def test_silence_is_a_timeout(open_local: OpenLocal) -> None:
    engine = open_local(timeout_s=1.0)
    await engine.check()
    network = network_of(engine)
    forward, go_on = network.forward, threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        go_on.wait(30)
        return forward(*args, **kwargs)

    network.forward = slow
    with pytest.raises(EngineTimeout, match=r"computed nothing for 1 s"):
        await complete(engine, ask())
    go_on.set()
    await settled(engine)

    assert (await complete(engine, ask(max_tokens=2))).usage.completion_tokens


async def test_the_event_loop_runs_while_the_engine_computes(open_local: OpenLocal) -> None:
    engine = open_local()
    await engine.check()
    network = network_of(engine)
    forward = network.forward

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return forward(*args, **kwargs)

    network.forward = slow
    call = asyncio.ensure_future(complete(engine, ask(max_tokens=3)))
    ticks = 0
    while not call.done():
        await asyncio.sleep(0.005)
        ticks += 1

    assert ticks > 10


async def test_a_long_prompt_loses_its_oldest_tokens(open_local: OpenLocal) -> None:
    engine = open_local()

    completion = await complete(engine, ask("word " * 2000, max_tokens=16))

    assert completion.usage.prompt_tokens == 512 - 16
    assert (await complete(engine, ask(max_tokens=9999))).usage.completion_tokens <= 256


async def test_a_missing_model_is_told_and_tried_again(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    engine = LocalGenerator("local", EngineSettings(kind="local", model=str(folder)))

    with pytest.raises(EngineFailure, match=r"no model at .*engines\.local\.model"):
        await engine.check()
    shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
    await engine.check()
    await engine.aclose()


async def test_closing_fails_running_calls_and_joins_the_thread(open_local: OpenLocal) -> None:
    engine = open_local()
    call = asyncio.ensure_future(complete(engine, ask(max_tokens=250)))
    await asyncio.sleep(0.05)

    await engine.aclose()
    await engine.aclose()

    with pytest.raises(EngineFailure, match="closed"):
        await call
    with pytest.raises(EngineFailure, match="closed"):
        await complete(engine, ask())
    assert not [t for t in threading.enumerate() if t.name == "engine-local"]


async def test_constraints_can_be_switched_off(open_local: OpenLocal) -> None:
    engine = open_local(constrained="none")

    completion = await complete(engine, ask(choices=("true", "false"), max_tokens=5))

    assert not engine.capabilities.choices
    assert completion.usage.completion_tokens > 1


async def test_calls_that_come_and_go_at_random_do_not_disturb_each_other(
    open_local: OpenLocal,
) -> None:
    engine = open_local(max_concurrency=8)
    chance = random.Random(5)
    requests = mixed_requests()
    expected = [(await complete(engine, request)).text for request in requests]
    leaving: list[asyncio.Task[Any]] = []
    staying: list[tuple[int, asyncio.Task[Any]]] = []
    for _ in range(80):
        number = chance.randrange(len(requests))
        call = asyncio.ensure_future(complete(engine, requests[number]))
        if chance.random() < 0.4:
            leaving.append(call)
        else:
            staying.append((number, call))
        await asyncio.sleep(chance.random() * 0.004)
        if leaving and chance.random() < 0.5:
            leaving.pop(chance.randrange(len(leaving))).cancel()
    for call in leaving:
        call.cancel()

    for number, call in staying:
        assert (await call).text == expected[number]
    await settled(engine)


async def test_weights_cut_short_are_told_with_the_remedy(
    tiny_model: Path, tmp_path: Path, open_local: OpenLocal
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(EngineFailure, match=r"cannot load .*; download the model again, or set"):
        await open_local(model=str(folder)).check()


async def test_a_folder_that_does_not_exist_is_told(open_local: OpenLocal, tmp_path: Path) -> None:
    with pytest.raises(EngineFailure, match=r"the folder .*/gone does not exist"):
        await open_local(model=str(tmp_path / "gone")).check()
