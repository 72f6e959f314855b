"""The pool over two real vLLM workers on the CPU: a kill, a caller who leaves, affinity."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from service.answer.events import Token
from service.answer.fold import collect
from service.answer.request import AnswerRequest
from service.checks import warm
from service.core.concurrency import closing, gather
from service.core.domain import Answer, Passage
from service.core.settings import Settings
from service.engines.base import GenerationRequest, complete
from service.engines.factory import open_generator
from service.retrieval.base import anyone
from service.runtime import Runtime
from tests.support.asking import PASSAGES, ScriptedRetriever
from tests.support.retrieval import open_scripted
from tests.support.tiny import as_trained
from tests.support.vllm import OF_A_POOL, Vllm, metric, vllm_server

RUNNING, TOKENS = "vllm:num_requests_running", "vllm:generation_tokens_total"
TOWNS = tuple(
    Passage(f"town{n}", f"Town {n}", f"Town {n} is a town in the county of Number {n}. " * 12)
    for n in range(40)
)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, plain_vllm: Vllm) -> Iterator[list[Vllm]]:
    """The first is this module's own, because the last test kills it."""
    with vllm_server(tmp_path_factory.mktemp("vllm") / "log", *OF_A_POOL) as own:
        for worker in (own, plain_vllm):
            worker.wait()
        yield [own, plain_vllm]


def settings_for(workers: Sequence[Vllm]) -> Settings:
    engine = {
        "kind": "vllm",
        "urls": [worker.url for worker in workers],
        "timeout_s": 60.0,
    }
    return Settings.model_validate(as_trained() | {"engines": {"default": engine}})


def prefix_cache(workers: Sequence[Vllm]) -> tuple[float, float]:
    """Tokens of prompts, and those of them that were in the cache."""
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    asked, hit = (sum(metric(worker.url, name) for worker in workers) for name in names)
    return asked, hit


async def dialogues(workers: Sequence[Vllm], kind: str) -> float:
    """Prefix-cache hit rate of sixteen dialogues of four turns, as Auto-RAG's grow, two at once."""
    engine = open_generator("pool", settings_for(workers).engines["default"])
    await engine.check()
    asked, hit = prefix_cache(workers)

    async def dialogue(number: int) -> None:
        prompt = f"{kind} {number}. " + f"Number {number} of {kind} is a question of its own. " * 20
        for turn in range(4):
            request = GenerationRequest(
                prompt=prompt, max_tokens=8, question=f"{kind}{number}", turn=turn
            )
            prompt += (await complete(engine, request)).text + f" document {turn} says that " * 20

    left = iter(range(16))

    async def lane() -> None:
        for number in left:
            await dialogue(number)

    await gather([lane, lane])
    await engine.aclose()
    asked_then, hit_then = prefix_cache(workers)
    return (hit_then - hit) / (asked_then - asked)


async def test_a_question_meets_its_prefix_cache_again(workers: list[Vllm]) -> None:
    alone = await dialogues(workers[:1], "alone")
    both = await dialogues(workers, "both")

    print(f"prefix-cache hit rate: one worker {alone:.3f}, two {both:.3f}")
    assert alone > 0.5
    assert both >= 0.9 * alone


async def test_a_caller_that_leaves_stops_the_engine(workers: list[Vllm]) -> None:
    engine = open_generator("pool", settings_for(workers).engines["default"])
    long = "so " * 600  # the one choice there is: 1,800 tokens
    request = GenerationRequest(prompt="x", max_tokens=1900, choices=(long,))
    before = await asyncio.to_thread(_sum, workers, TOKENS)

    async with closing(engine.stream(request)) as deltas:
        await anext(deltas)

    async with asyncio.timeout(30):  # a second on an idle machine
        while await asyncio.to_thread(_sum, workers, RUNNING):  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.02)
    assert await asyncio.to_thread(_sum, workers, TOKENS) - before < 1500
    await engine.aclose()


def _sum(workers: Sequence[Vllm], name: str) -> float:
    return sum(metric(worker.url, name) for worker in workers)


async def test_a_worker_killed_in_mid_question_fails_none(workers: list[Vllm]) -> None:
    """The last of this file: one worker is gone after it."""
    async with open_scripted(
        settings_for(workers), retriever=ScriptedRetriever({"": (*PASSAGES, *TOWNS)})
    ) as runtime:
        assert all(check.ok for check in await warm(runtime))
        begun = asyncio.Event()
        asked = [asyncio.create_task(_ask(runtime, n, begun)) for n in range(12)]
        await begun.wait()
        os.killpg(workers[0].process.pid, signal.SIGKILL)
        bodies = await asyncio.gather(*asked)

    assert all(isinstance(body, Answer) for body in bodies)


async def _ask(runtime: Runtime, number: int, begun: asyncio.Event) -> Any:
    request = await runtime.prepare(
        AnswerRequest(question=f"Where is Town {number}?", route="single", loop="autorag"), anyone
    )

    async def watched() -> Any:
        async with closing(runtime.ask(request)) as events:
            async for event in events:
                if isinstance(event, Token):
                    begun.set()
                yield event

    return await collect(watched())
