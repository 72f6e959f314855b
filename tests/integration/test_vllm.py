"""The OpenAI client against a real vLLM.

VLLM_URL names a running server (`http://host:port/v1`), or VLLM_PYTHON a python with vLLM in it,
which then serves a tiny model on the CPU, for this file and for test_pool.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from runpy import run_path
from typing import Any
from urllib.request import urlopen

import pytest
from rich.console import Console

from service.core.concurrency import closing
from service.core.errors import EngineFailure
from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest, Message, complete
from service.engines.openai import OpenAIGenerator
from service.engines.signals import ScoreRequest
from service.engines.vllm import VllmGenerator
from service.workshop.synthesis.command import Synthesis, SynthesisOptions
from service.workshop.synthesis.contract import Teacher
from service.workshop.synthesis.pipelines import pipeline_of
from tests.conftest import unavailable
from tests.support.real_engines import check_choices, check_schema, check_stop
from tests.support.tiny import TINY, open_tiny
from tests.support.vllm import Vllm, metric
from tests.unit.workshop.synthesis.worlds import compound_lines, nothing


@pytest.fixture(scope="module")
def vllm_url(request: pytest.FixtureRequest) -> str:
    if url := os.environ.get("VLLM_URL"):
        return url
    server: Vllm = request.getfixturevalue("plain_vllm")
    server.wait()
    return server.url


@pytest.fixture
async def engine(vllm_url: str, anyio_backend: str) -> AsyncIterator[OpenAIGenerator]:
    settings = EngineSettings(kind="vllm", urls=[vllm_url], timeout_s=120)
    generator = OpenAIGenerator("vllm", settings)
    yield generator
    await generator.aclose()


def ask(text: str = "Task: answer\nQuestion: Where?\nAnswer:", **fields: Any) -> GenerationRequest:
    return GenerationRequest(messages=(Message("user", text),), **fields)


def tokens_made(url: str) -> float:
    return metric(url, "vllm:generation_tokens_total")


async def test_it_is_known_as_vllm_and_answers(engine: OpenAIGenerator) -> None:
    await engine.check()

    completion = await complete(engine, ask(max_tokens=8, logprobs=True))

    assert completion.usage.prompt_tokens > 0
    assert 0 < completion.usage.completion_tokens <= 8
    assert completion.logprob is not None
    assert completion.logprob < 0


async def test_without_our_plugin_there_are_no_signals(vllm_url: str) -> None:
    if os.environ.get("VLLM_URL"):
        unavailable("a vLLM that is known to lack our plugin", "unset VLLM_URL")
    worker = VllmGenerator("vllm", EngineSettings(kind="vllm", urls=[vllm_url]))

    assert not (await worker.profile()).signals
    with pytest.raises(EngineFailure, match="start the server with `revelator worker`"):
        await worker.score(ScoreRequest("The river"))
    await worker.aclose()


def test_the_charts_drain_hook_reads_how_busy_it_is(vllm_url: str) -> None:
    hook = run_path(str(Path(__file__).parents[2] / "deploy" / "helm" / "files" / "drain.py"))
    with urlopen(vllm_url.replace("/v1", "/metrics"), timeout=5) as answer:
        text = answer.read().decode()
    assert len(hook["BUSY"].findall(text)) >= 2  # running and waiting


async def test_choices(engine: OpenAIGenerator) -> None:
    await check_choices(engine)
    await check_choices(engine, raw=True)


async def test_a_schema(engine: OpenAIGenerator) -> None:
    await check_schema(engine)


async def test_stop_strings(engine: OpenAIGenerator) -> None:
    await check_stop(engine)


async def test_leaving_aborts_the_call_within_a_second(
    engine: OpenAIGenerator, vllm_url: str
) -> None:
    before = await asyncio.to_thread(tokens_made, vllm_url)
    request = GenerationRequest(prompt="x", max_tokens=1900, temperature=2.0)
    async with closing(engine.stream(request)) as deltas:
        for _ in range(3):
            await anext(deltas)

    await asyncio.sleep(1.0)
    after_a_second = await asyncio.to_thread(tokens_made, vllm_url)
    await asyncio.sleep(0.5)
    assert await asyncio.to_thread(tokens_made, vllm_url) == after_a_second
    assert after_a_second - before < 1900
    assert (await complete(engine, ask(max_tokens=4))).usage.completion_tokens > 0


async def test_the_engine_in_the_process_writes_the_same(engine: OpenAIGenerator) -> None:
    """Greedy output of TINY, token by token, in two implementations."""
    if os.environ.get("VLLM_URL") and not os.environ.get("VLLM_SERVES_TINY"):
        unavailable(f"{TINY.name} at VLLM_URL", "set VLLM_SERVES_TINY=1 where it is")
    local = open_tiny()
    for topic, chat in (("the film Norma", True), ("an Zürich—é", True), ("Paris", False)):
        text = f"Task: answer\nQuestion: Who made {topic}?\nAnswer:"
        raw = GenerationRequest(prompt=text, max_tokens=24)
        request = ask(text, max_tokens=24) if chat else raw

        here, there = await complete(local, request), await complete(engine, request)

        assert here.text.strip() == there.text.strip()
        assert here.usage == there.usage
        assert here.finish == there.finish
    await local.aclose()


async def test_it_can_teach(engine: OpenAIGenerator, tmp_path: Path) -> None:
    """The tiny model knows nothing of the task; its replies are JSON as asked for, and what it
    says is accounted for."""
    pipeline = pipeline_of("compound")
    items = pipeline.read([(1, compound_lines()[1])], Random(0), [])
    options = SynthesisOptions(tmp_path / "in", tmp_path / "out.jsonl")
    run = Synthesis(pipeline, Teacher(engine, "shipped"), nothing, options)
    report = await run.over(items, [], Console(quiet=True))
    assert report.input == 1 == report.written + sum(report.dropped.values())
    assert report.spent.calls >= 2
    assert report.spent.completion_tokens > 0
    assert "ask: not JSON" not in report.spent.bad
