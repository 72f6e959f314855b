"""What an evaluation costs beside the answers, and what concurrency gives it.

    python -m tests.benchmarks.evaluation_rate [--questions 48] [--latency 0.1]

The bare path is the same questions asked one after another, without scoring and rows. The ratios
are on an engine that takes a stated time for each word.
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
from service.evaluation.run_folder import EvaluationRun, open_run
from service.evaluation.runner import Plan, Task, work_off
from service.runtime import Runtime, open_runtime
from tests.stubs.fake_retriever import FakeRetriever
from tests.support.asking import prepared
from tests.support.live import answering
from tests.support.scripted import ScriptedGenerator


async def bare(runtime: Runtime, tasks: Sequence[Task]) -> None:
    for task in tasks:
        async with closing(runtime.ask(task.request)) as events:
            async for _ in events:
                pass


async def evaluated(runtime: Runtime, tasks: Sequence[Task], concurrency: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        open_run(Path(folder), EvaluationRun({}, {}, {})) as kept,
    ):
        async with closing(work_off(tasks, runtime.ask, concurrency)) as rows:
            async for row in rows:
                kept.append(row)


async def main(questions: int, latency: float) -> None:
    plan = Plan(prepared(route="single"), dataset="d", method="single")
    tasks = [
        Task(GoldQuestion(str(n), f"Who wrote opera {n}?", ("Bellini",)), plan)
        for n in range(questions)
    ]
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
    arguments = parser.parse_args()
    anyio.run(main, arguments.questions, arguments.latency)
