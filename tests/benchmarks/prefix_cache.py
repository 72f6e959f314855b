"""How much of each loop's prompts is found in the prefix caches of real vLLM workers, or of a model
in this process.

    VLLM_PYTHON=… python -m tests.benchmarks.prefix_cache [--loops autorag dragin] [--questions 30]
    python -m tests.benchmarks.prefix_cache --model FOLDER [--at-once 8]

The sample questions over the sample corpus, four at once, first on one worker with the shipped
model and our plugin, then on two behind a pool; rates are vLLM's own counters (hits / queries,
tokens), of blocks of 32 tokens. Aims: two workers >= 0.9 x one (autorag); dragin >= 0.6. With
--model the folder's model runs here, a compiled one (service/models/reader) with its own prompts,
any other with `full` ones, first without a prefix cache, then with one: the same answers, in less
CPU time. Each run has a process of its own, whose highest memory is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from service.answer.fold import collect
from service.answer.request import parse_request
from service.core.concurrency import gather
from service.core.domain import Answer
from service.core.settings import Settings
from service.engines.batch.engine import BLOCK, PrefixCache
from service.engines.embedded import CARD_FILE
from service.retrieval.base import anyone
from service.runtime import Runtime, open_runtime
from service.telemetry.logs import configure_logging
from tests.support.tiny import as_trained
from tests.support.vllm import Vllm, metric, vllm_server
from tests.support.vllm_plugin import FLAGS, plugin_environment

QUESTIONS = Path(__file__).parents[2] / "service" / "models" / "sample" / "questions.jsonl"
AT_ONCE = 4
COUNTERS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")


def settings_for(workers: Sequence[Vllm], folder: Path) -> Settings:
    engine = {"kind": "vllm", "urls": [w.url for w in workers]}
    sections = as_trained() | {"data_dir": folder, "engines": {"default": engine}}
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


async def rate(workers: Sequence[Vllm], folder: Path, loop: str, questions: Sequence[str]) -> float:
    async with open_runtime(settings_for(workers, folder)) as runtime:
        await runtime.warm()
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


class Counted(PrefixCache[Any]):
    """Counts the blocks of the prompts, and those that were found."""

    asked = found = 0

    def take(self, names: Sequence[bytes]) -> list[Any]:
        self.found += len(names)
        return super().take(names)

    def add(self, names: Sequence[bytes], states: Callable[[int], Any]) -> None:
        self.asked += len(names)
        super().add(names, states)


async def in_process(
    model: str, folder: Path, known: bool, loop: str, asked: list[str], at_once: int
) -> None:
    compiled = (Path(model) / CARD_FILE).exists()
    full = {role: {"templates": "full"} for role in ("revelator", "reader")}
    sections = {"roles": {} if compiled else full}
    kind = "embedded" if compiled else "local"
    engine = {"kind": kind, "model": model, "timeout_s": 300.0}
    more = {"data_dir": folder, "engines": {"default": engine}, "limits": {"timeout_s": 300.0}}
    async with open_runtime(Settings.model_validate(sections | more)) as runtime:
        await runtime.warm()
        generator: Any = runtime.engines["default"]
        own = generator._worker._engine
        if not known:
            module: Any = sys.modules[type(own).__module__]
            module.PREFIX_BYTES = 0
        most_bytes = own._prefixes._most_bytes if known else 0
        cache = own._prefixes = Counted(most_bytes, own._prefixes._size)
        begun, spent = time.perf_counter(), time.process_time()
        steps, calls = await ask_all(runtime, asked, loop, at_once)
        took, spent = time.perf_counter() - begun, time.process_time() - spent
        cached = cache.nbytes >> 20
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{loop:8} {'with' if known else 'without':7}: {cache.found / cache.asked:.3f} of "
        f"{cache.asked * BLOCK} prompt tokens found; {spent / len(asked):.1f} s of CPU and "
        f"{took / len(asked):.1f} s a question; {steps:.1f} steps and {calls:.1f} calls; "
        f"memory {highest} MB, of which cached {cached} MB at the end",
        flush=True,
    )


def in_new_process(*arguments: Any) -> None:
    process = multiprocessing.get_context("spawn").Process(target=run, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)


def run(*arguments: Any) -> None:
    configure_logging("error")
    asyncio.run(in_process(*arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", nargs="+", default=["anrag", "autorag", "dragin"])
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--model", help="a Hugging Face or compiled folder, run on this machine")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="questions, with --model")
    options = parser.parse_args()
    configure_logging("error")
    rows = [orjson.loads(line) for line in QUESTIONS.read_bytes().splitlines()]
    questions = [row["question"] for row in rows[: options.questions]]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.model:
            for loop in options.loops:
                for known in (False, True):
                    in_new_process(options.model, folder, known, loop, questions, options.at_once)
            return
        flags = (*FLAGS, "--block-size", "32", "--scheduling-policy", "priority")
        environment = plugin_environment(folder / "plugin")
        one, *others = [
            stack.enter_context(vllm_server(folder / f"log{n}", *flags, environment=environment))
            for n in range(3)
        ]
        for worker in (one, *others):
            worker.wait()
        for loop in options.loops:
            alone = asyncio.run(rate([one], folder / "data", loop, questions))
            both = asyncio.run(rate(others, folder / "data", loop, questions))
            print(f"{loop:8} two / one: {both / alone if alone else 0:.2f}", flush=True)


if __name__ == "__main__":
    main()
