"""What every engine must keep of the `Generator` protocol: scripted, over HTTP, in the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from service.core.concurrency import closing
from service.core.errors import EngineFailure
from service.core.settings import EngineSettings
from service.engines.base import Delta, GenerationRequest, Generator, Message, complete
from service.engines.factory import open_generator
from tests.stubs.openai_server import StubServer
from tests.stubs.tiny_compiled import COMPILED
from tests.stubs.tiny_model import save_tiny_model
from tests.support.scripted import ScriptedGenerator, ScriptStep

LABELS = ("true", "false")
WORDS = " ".join(f"word{n}" for n in range(200))


@dataclass
class Subject:
    """An engine, and a way to see how many calls it runs."""

    engine: Generator
    below: Any  # has `running`

    async def idle(self) -> bool:
        try:
            async with asyncio.timeout(60):
                while self.below.running:  # noqa: ASYNC110 (engines have no event for it)
                    await asyncio.sleep(0.005)
        except TimeoutError:
            return False
        return True


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("contract-model"))


@asynccontextmanager
async def scripted() -> AsyncIterator[Subject]:
    steps = [
        ScriptStep("true", match=lambda request: bool(request.choices), times=None),
        ScriptStep('["a", "b"]', match=lambda request: bool(request.json_schema), times=None),
        ScriptStep("word " * 5, match=lambda r: r.max_tokens == 5, times=None, finish="length"),
        ScriptStep(WORDS, times=None, delay=0.001, logprob=-0.5),
    ]
    engine = ScriptedGenerator(steps)
    yield Subject(engine, engine)
    await engine.aclose()


def reply(body: dict[str, Any]) -> str:
    if "structured_outputs" not in body:
        return WORDS
    return "true" if "choice" in body["structured_outputs"] else '["a", "b"]'


@asynccontextmanager
async def over_http() -> AsyncIterator[Subject]:
    async with StubServer(reply=reply, owned_by="vllm", token_delay=0.001) as server:
        settings = EngineSettings(kind="openai", urls=[server.url])
        engine = open_generator("remote", settings)
        yield Subject(engine, server)
        await engine.aclose()


@asynccontextmanager
async def in_process(kind: Literal["local", "embedded"], model: Path) -> AsyncIterator[Subject]:
    engine: Any = open_generator("mine", EngineSettings(kind=kind, model=str(model)))
    yield Subject(engine, engine)
    await engine.aclose()


@pytest.fixture(params=["scripted", "openai", "local", "embedded"])
async def subject(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Subject]:
    opened = {
        "scripted": scripted,
        "openai": over_http,
        "local": lambda: in_process("local", request.getfixturevalue("tiny_model")),
        "embedded": lambda: in_process("embedded", COMPILED),
    }
    async with opened[request.param]() as subject:
        yield subject


def ask(**fields: Any) -> GenerationRequest:
    return GenerationRequest(messages=(Message("user", "Who was born in Paris?"),), **fields)


async def test_it_can_answer(subject: Subject) -> None:
    await subject.engine.check()

    assert subject.engine.name
    assert subject.engine.capabilities.choices


async def test_only_the_last_delta_has_finish_and_usage(subject: Subject) -> None:
    deltas = [delta async for delta in subject.engine.stream(ask(max_tokens=20))]

    assert [delta.finish is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert [delta.usage is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert all(delta.text for delta in deltas[:-1])
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.prompt_tokens > 0


async def test_a_call_is_the_fold_of_its_deltas(subject: Subject) -> None:
    deltas = [delta async for delta in subject.engine.stream(ask(max_tokens=5))]

    completion = await complete(subject.engine, ask(max_tokens=5))

    assert completion.text == "".join(delta.text for delta in deltas)
    assert completion.usage == deltas[-1].usage


async def test_the_limit_of_tokens_holds(subject: Subject) -> None:
    completion = await complete(subject.engine, ask(max_tokens=5))

    assert completion.finish == "length"
    assert 0 < completion.usage.completion_tokens <= 5


async def test_raw_prompts_are_continued(subject: Subject) -> None:
    completion = await complete(
        subject.engine, GenerationRequest(prompt="The capital of", max_tokens=5)
    )

    assert completion.usage.completion_tokens > 0


async def test_choices_are_answered_by_one_of_them(subject: Subject) -> None:
    completion = await complete(subject.engine, ask(choices=LABELS, max_tokens=3))

    assert completion.text in LABELS


async def test_a_schema_is_followed(subject: Subject) -> None:
    import json

    schema = {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2}

    completion = await complete(subject.engine, ask(json_schema=schema, max_tokens=64))

    assert isinstance(json.loads(completion.text), list)


async def test_logprobs_are_there_where_asked_for(subject: Subject) -> None:
    silent = await complete(subject.engine, ask(max_tokens=8))
    asked = await complete(subject.engine, ask(max_tokens=8, logprobs=True))

    assert silent.logprob is None
    assert asked.logprob is not None
    assert asked.logprob < 0
    assert asked.text == silent.text


async def test_ten_calls_at_once_are_ten_answers(subject: Subject) -> None:
    one = await complete(subject.engine, ask(max_tokens=20))

    ten = await asyncio.gather(*(complete(subject.engine, ask(max_tokens=20)) for _ in range(10)))

    assert [completion.text for completion in ten] == [one.text] * 10


@pytest.mark.parametrize("way", ["close", "cancel the reader", "cancel before the first delta"])
async def test_leaving_ends_the_call_below(subject: Subject, way: str) -> None:
    await subject.engine.check()
    request = ask(max_tokens=150)
    if way == "cancel before the first delta":
        call = asyncio.ensure_future(complete(subject.engine, request))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    else:
        async with closing(subject.engine.stream(request)) as deltas:
            await anext(deltas)
            if way == "cancel the reader":
                reader: asyncio.Task[Delta] = asyncio.ensure_future(anext(deltas))
                await asyncio.sleep(0)
                reader.cancel()
                await asyncio.wait([reader])

    assert await subject.idle()
    assert (await complete(subject.engine, ask(max_tokens=5))).text


async def test_closing_twice_is_closing_once(subject: Subject) -> None:
    await complete(subject.engine, ask(max_tokens=5))

    await subject.engine.aclose()
    await subject.engine.aclose()

    if not isinstance(subject.engine, ScriptedGenerator):
        with pytest.raises(EngineFailure, match="closed"):
            await complete(subject.engine, ask(max_tokens=5))
