"""What an evaluation costs beside the answers, and what concurrency gives it.

    python -m tests.benchmarks.evaluation_rate [--questions 48] [--latency 0.1]
    VLLM_PYTHON=… python -m tests.benchmarks.evaluation_rate --vllm [--questions 48]

The bare path is the same questions asked one after another, without scoring and rows. The ratios
are on an engine that takes a stated time for each word, or on a vLLM server with the tests' model.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from service.core.concurrency import closing
from service.core.settings import Settings
from service.evaluation.datasets import GoldQuestion
from service.evaluation.rows import open_run
from service.evaluation.runner import Plan, Task, work_off
from service.runtime import Runtime, open_runtime
from tests.stubs.fake_retriever import FakeRetriever
from tests.support.asking import prepared
from tests.support.live import answering
from tests.support.scripted import ScriptedGenerator
from tests.support.tiny import as_trained
from tests.support.vllm import OF_A_POOL, vllm_server


async def bare(runtime: Runtime, tasks: Sequence[Task]) -> None:
    for task in tasks:
        async with closing(runtime.ask(task.request)) as events:
            async for _ in events:
                pass


async def evaluated(runtime: Runtime, tasks: Sequence[Task], concurrency: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        open_run(Path(folder), {"common": {}, "datasets": {}, "methods": {}}) as kept,
    ):
        async with closing(work_off(tasks, runtime.ask, concurrency)) as rows:
            async for row in rows:
                kept.append(row)


def tasks_of(questions: int) -> list[Task]:
    plan = Plan(prepared(route="single"), dataset="d", method="single")
    return [
        Task(GoldQuestion(str(n), f"Who wrote opera {n}?", ("Bellini",)), plan)
        for n in range(questions)
    ]


async def on_vllm(questions: int, url: str) -> None:
    engine = {"kind": "vllm", "urls": [url], "timeout_s": 300}
    settings = Settings.model_validate(as_trained() | {"engines": {"default": engine}})
    async with open_runtime(settings, retriever=FakeRetriever()) as runtime:
        await runtime.warm()
        await bare(runtime, tasks_of(2))
        seconds = []
        for at_once in (1, 8):
            since = time.monotonic()
            await evaluated(runtime, tasks_of(questions), at_once)
            seconds.append(time.monotonic() - since)
    print(f"on vLLM: {questions / seconds[0]:.2f} questions a second at 1 at once")
    print(f"on vLLM: questions a second at 8 over 1: {seconds[0] / seconds[1]:.2f}")


async def main(questions: int, latency: float) -> None:
    tasks = tasks_of(questions)
    engines = {"default": ScriptedGenerator(answering("Bellini"))}
    async with open_runtime(Settings(), engines=engines, retriever=FakeRetriever()) as runtime:
        cpu: list[list[float]] = [[], []]
        for _ in range(5):
            for which, work in enumerate((bare(runtime, tasks), evaluated(runtime, tasks, 1))):
                since = time.process_time()
                await work
                cpu[which].append(time.process_time() - since)
        own_ms = (min(cpu[1]) - min(cpu[0])) / questions * 1000
        print(f"own CPU of the evaluation: {own_ms:.2f} ms a question")
    engines = {"default": ScriptedGenerator(answering("Bellini", delay=latency))}
    async with open_runtime(Settings(), engines=engines, retriever=FakeRetriever()) as runtime:
        seconds = []
        for work in (bare(runtime, tasks), *(evaluated(runtime, tasks, n) for n in (1, 8))):
            since = time.monotonic()
            await work
            seconds.append(time.monotonic() - since)
        print(f"seconds over the bare path: {seconds[1] / seconds[0]:.3f}")
        print(f"questions a second at 8 over 1: {seconds[1] / seconds[2]:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--latency", type=float, default=0.1, help="seconds a word")
    parser.add_argument("--vllm", action="store_true", help="start a vLLM server and ask there")
    arguments = parser.parse_args()
    if arguments.vllm:
        with (
            tempfile.TemporaryDirectory() as folder,
            vllm_server(Path(folder) / "log", *OF_A_POOL) as worker,
        ):
            worker.wait()
            anyio.run(on_vllm, arguments.questions, worker.url)
    else:
        anyio.run(main, arguments.questions, arguments.latency)
