"""How much of each loop's prompts is found in the prefix caches of real vLLM workers.

    VLLM_PYTHON=… python -m tests.benchmarks.prefix_cache [--loops autorag dragin] [--questions 30]
        [--model FOLDER]

The sample questions over the sample corpus, four at once, first on one worker with the shipped
model, or another that is asked in the protocol of Search-R1, and our plugin, then on two behind a
pool; rates are vLLM's own counters (hits / queries,
tokens), of blocks of 32 tokens. Aims: two workers >= 0.9 x one (autorag); dragin >= 0.6.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from service.answer.fold import collect
from service.answer.request import parse_request
from service.checks import warm
from service.core.concurrency import gather
from service.core.domain import Answer
from service.core.settings import Settings
from service.retrieval.base import anyone
from service.runtime import Runtime, open_runtime
from service.telemetry.logs import configure_logging
from tests.support.tiny import as_trained
from tests.support.vllm import Vllm, metric, vllm_server
from tests.support.vllm_plugin import FLAGS, plugin_environment

QUESTIONS = Path(__file__).parents[2] / "service" / "models" / "sample" / "questions.jsonl"
AT_ONCE = 4
COUNTERS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")


SEARCHER = {
    "roles": {"reader": {"templates": "full", "encoder": "none"}},
    "searcher": {"protocol": "search_r1"},
}


def settings_for(workers: Sequence[Vllm], folder: Path, own: dict[str, Any]) -> Settings:
    engine = {"kind": "vllm", "urls": [w.url for w in workers]}
    sections = own | {"data_dir": folder, "engines": {"default": engine}}
    return Settings.model_validate(sections)


def read(workers: Sequence[Vllm]) -> tuple[float, float]:
    asked, hit = (sum(metric(worker.url, name) for worker in workers) for name in COUNTERS)
    return asked, hit


async def ask_all(
    runtime: Runtime, questions: Sequence[str], loop: str, at_once: int = AT_ONCE
) -> tuple[float, float]:
    """Steps and engine calls per question."""
    left = iter(questions)
    bodies: list[Answer] = []

    async def lane() -> None:
        for question in left:
            asked = parse_request({"question": question, "route": "complex", "loop": loop})
            request = await runtime.prepare(asked, anyone)
            body = await collect(runtime.ask(request))
            assert isinstance(body, Answer), body
            bodies.append(body)

    await gather([lane for _ in range(at_once)])
    count = len(bodies)
    return (
        sum(body.usage.steps for body in bodies) / count,
        sum(body.usage.llm_calls for body in bodies) / count,
    )


async def rate(
    workers: Sequence[Vllm], folder: Path, own: dict[str, Any], loop: str, questions: Sequence[str]
) -> float:
    async with open_runtime(settings_for(workers, folder, own)) as runtime:
        await warm(runtime)
        asked, hit = read(workers)
        steps, calls = await ask_all(runtime, questions, loop)
    asked_then, hit_then = read(workers)
    found = (hit_then - hit) / (asked_then - asked)
    print(
        f"{loop:8} {len(workers)} worker(s): hit rate {found:.3f} of {asked_then - asked:.0f} "
        f"tokens; {steps:.1f} steps and {calls:.1f} engine calls a question",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", nargs="+", default=["anrag", "autorag", "dragin"])
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    configure_logging("error")
    rows = [orjson.loads(line) for line in QUESTIONS.read_bytes().splitlines()]
    questions = [row["question"] for row in rows[: options.questions]]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        flags = (*FLAGS, "--block-size", "32", "--scheduling-policy", "priority")
        own = as_trained()
        if options.model:
            flags, own = (*flags, "--model", str(options.model)), SEARCHER
        environment = plugin_environment(folder / "plugin")
        one, *others = [
            stack.enter_context(vllm_server(folder / f"log{n}", *flags, environment=environment))
            for n in range(3)
        ]
        for worker in (one, *others):
            worker.wait()
        for loop in options.loops:
            alone = asyncio.run(rate([one], folder / "data", own, loop, questions))
            both = asyncio.run(rate(others, folder / "data", own, loop, questions))
            print(f"{loop:8} two / one: {both / alone if alone else 0:.2f}", flush=True)


if __name__ == "__main__":
    main()
