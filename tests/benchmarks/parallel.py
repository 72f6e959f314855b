"""Whether what can run at once does, on an engine that serves 64 calls at once, 50 ms each.

    python -m tests.benchmarks.parallel

Targets: 10 judgements ≤ 1.2 × one call; compound of 4: its parts together ≤ 1.15 × one part alone,
the whole ≤ 1.1 × (3 calls + one part). Wall times, median of several rounds.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from service.answer.inquiry import Scope
from service.core.domain import Passage
from service.engines.base import Capabilities, Delta, GenerationRequest, TokenUsage
from service.strategies.anrag import Anrag
from service.strategies.pipeline import answer_stream
from service.strategies.reader import PromptReader
from tests.support.asking import ScriptedRetriever, inquiry

CALL_S = 0.05
ROUNDS = 15
PARTS = [f"What is fact {n}?" for n in range(4)]
PASSAGES = [Passage(f"p{n}", f"Title {n}", f"Fact {n} is {n}.") for n in range(10)]


class StubEngine:
    """Every call takes 50 ms, up to 64 at once."""

    name = "stub"
    capabilities = Capabilities(choices=True, json_schema=True)

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(64)

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        prompt = request.messages[0].content
        async with self._slots:
            await asyncio.sleep(CALL_S)
        text = "an answer"
        if "Task: route" in prompt:
            text = "compound question"
        elif "Task: relevance" in prompt:
            text = "true"
        elif "Task: decompose" in prompt:
            text = json.dumps({"thought": "four", "decomposition": PARTS})
        yield Delta(text, finish="stop", usage=TokenUsage(10, 2))

    async def check(self) -> None:
        return None

    async def aclose(self) -> None:
        return None


async def median_seconds(work: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


async def main() -> None:
    engine, retriever = StubEngine(), ScriptedRetriever({"": PASSAGES})

    def asked(route: str = "auto") -> Scope:
        return Scope(inquiry(engine, retriever, "all four?", route=route))

    async def judge(count: int) -> None:
        step = asked().step("retrieve", "q")
        await PromptReader(step, "q").judge(PASSAGES[:count])

    async def part() -> None:
        await Anrag(asked(), PARTS[0], "draft").run()

    async def whole() -> None:
        async for _ in answer_stream(asked().inquiry):
            pass

    one, ten = await median_seconds(lambda: judge(1)), await median_seconds(lambda: judge(10))
    alone, compound = await median_seconds(part), await median_seconds(whole)
    calls = 3 * one
    print(f"one call {one * 1000:.1f} ms; ten judgements {ten / one:.3f} × that (target ≤ 1.2)")
    print(
        f"one part alone {alone * 1000:.1f} ms; four parts of a compound together "
        f"{(compound - calls) / alone:.3f} × that (target ≤ 1.15)"
    )
    print(f"whole compound {compound / (calls + alone):.3f} × (3 calls + one part) (target ≤ 1.1)")


if __name__ == "__main__":
    asyncio.run(main())
