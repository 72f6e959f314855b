"""Questions per second of DRAGIN on a vLLM worker, against the official code on transformers.

    git clone https://github.com/oneal2000/DRAGIN CHECKOUT
    VLLM_PYTHON=… python -m tests.benchmarks.dragin_rate CHECKOUT --size own|wide [--questions 50]

Same weights, passages, tagger and sentences on both sides, after demonstrations of 740 tokens. The
official loop takes one question at a time with all cores; then ours takes them 16 at once. The
worker's prefix cache is emptied before each pass, and only the demonstrations are read again.
`wide` is the shipped model at 103 M parameters (tests/stubs/wide_model.py).

The ceiling: what the worker computed in a pass (prompt tokens not found in its cache, tokens
written), at the rates at which it reads fresh prompts and writes plain completions, 16 at once, in
this very run. Aims: ours / official >= 5, share of the ceiling >= 0.8, `in_context` / `official`
>= 1.4. `wide` writes shorter drafts, so that a run takes ten minutes on two cores; its worker has
both of them, while that of the small model leaves one to its API server and to us.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.core.concurrency import gather
from service.core.domain import RoleName
from service.core.settings import EngineSettings
from service.engines.base import TokenUsage
from service.engines.factory import open_generator
from service.prompts.templates import SHIPPED, TemplateSet
from service.telemetry.logs import configure_logging
from tests.benchmarks.signals_cost import rate, without
from tests.conformance import dragin_official, dragin_parity
from tests.conformance.dragin_parity import Parameters, Trajectory, WordRetriever
from tests.stubs.wide_model import save_wide_model
from tests.support.tiny import TINY, TINY_TEMPLATES
from tests.support.vllm import Vllm, metric, vllm_server
from tests.support.vllm_plugin import FLAGS, plugin_environment

AT_ONCE = 16
OPTIONS = (*FLAGS, "--scheduling-policy", "priority", "--block-size", "32", "--max-num-seqs", "32")
WRITTEN = 64  # tokens of a call that the rate of writing is measured by
COUNTERS = ("prompt_tokens", "prefix_cache_hits", "generation_tokens")


@dataclass(frozen=True)
class Work:
    """What both sides are given. `in_context` is the θ of that profile, whose scores differ."""

    model: Path
    templates: TemplateSet
    questions: Sequence[str]
    parameters: Parameters
    in_context: float
    passes: int


@dataclass
class Observed:
    """Of one pass of ours: engine calls, and tokens that they were spared."""

    calls: int = 0
    tokens_saved: int = 0

    def generation(
        self, role: RoleName, worker: str, seconds: float, first_token: float, usage: TokenUsage
    ) -> None:
        self.calls += 1

    def wasted(self, tokens: int) -> None:
        pass

    def saved(self, tokens: int) -> None:
        self.tokens_saved += tokens

    def unread_judgements(self, count: int) -> None:
        pass

    def worker_in_flight(self, worker: str, change: int) -> None:
        pass


@dataclass(frozen=True)
class Pass:
    seconds: float
    read: float  # tokens of prompts that were computed
    written: float  # tokens that took a step of their own: all but the first of a call
    saved: int
    trajectories: Sequence[Trajectory]

    def rate(self) -> float:
        return len(self.trajectories) / self.seconds

    def __str__(self) -> str:
        count = len(self.trajectories)
        found = sum(len(one.turns) for one in self.trajectories) / count
        return (
            f"{self.rate():.3f} questions/s, {found:.2f} retrievals each; "
            f"{self.read:.0f} tokens read, {self.written:.0f} written, {self.saved} saved"
        )


class Bench:
    """Our side, at one worker."""

    def __init__(self, server: Vllm, work: Work) -> None:
        self._server = server
        self._work = work
        self._retriever = WordRetriever(dragin_parity.load_passages())
        settings = EngineSettings(kind="vllm", urls=[server.url], timeout_s=300)
        self.worker = open_generator("worker", settings)

    async def ask(self, questions: Sequence[str], profile: str) -> Pass:
        """One pass over questions, 16 at once."""
        self._empty_cache()
        await self._warm()
        observed, found = Observed(), dict.fromkeys(questions, Trajectory((), ""))
        left, before, begin = iter(questions), self._counted(), time.perf_counter()

        async def lane() -> None:
            for question in left:
                found[question] = await self._one(question, profile, observed)

        await gather([lane for _ in range(AT_ONCE)])
        seconds = time.perf_counter() - begin
        prompt, hits, written = (
            now - then for now, then in zip(self._counted(), before, strict=True)
        )
        saved, calls = observed.tokens_saved, observed.calls
        return Pass(seconds, prompt - hits, written - calls, saved, list(found.values()))

    async def _one(self, question: str, profile: str, observed: Observed) -> Trajectory:
        given = self._work.parameters
        threshold = self._work.in_context if profile == "in_context" else None
        return await dragin_parity.run_ours(
            self.worker,
            self._retriever,
            question,
            Parameters(
                threshold or given.hallucination_threshold,
                given.generate_max_length,
                given.retrieve_keep_top_k,
            ),
            profile=profile,
            templates=self._work.templates,
            observer=observed,
        )

    async def rates(self) -> tuple[float, float]:
        """Tokens a second: prompts new to the cache, and plain completions of prompts in it."""
        reading, writing = [], []
        for number in range(self._work.passes):
            texts = fresh_prompts(AT_ONCE, number)
            read, _, seconds = await self._timed(texts, 1)
            reading.append(read / seconds)
            read, written, seconds = await self._timed(texts, WRITTEN)
            writing.append(written / (seconds - read / reading[-1]))
        return statistics.median(reading), statistics.median(writing)

    async def _timed(self, texts: Sequence[str], most: int) -> tuple[float, float, float]:
        """Tokens read and written (as of `Pass`), and seconds, of plain completions at once."""
        before, begin = self._counted(), time.perf_counter()
        await rate(self.worker, without, texts, most)
        seconds = time.perf_counter() - begin
        prompt, hits, written = (
            now - then for now, then in zip(self._counted(), before, strict=True)
        )
        return prompt - hits, written - len(texts), seconds

    async def _warm(self) -> None:
        demonstrations, case = dragin_parity.prompt_parts("?", self._work.templates)
        text = "".join(f"{one}\n" for one in demonstrations) + case
        await without(self.worker, text, 1)

    def _empty_cache(self) -> None:
        url = self._server.url.replace("/v1", "/reset_prefix_cache")
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10):
            pass

    def _counted(self) -> list[float]:
        return [metric(self._server.url, f"vllm:{name}_total") for name in COUNTERS]


def fresh_prompts(count: int, round_: int) -> list[str]:
    """Each new to the prefix cache, of about 700 tokens."""
    sentences = " ".join(f"City number {n} lies on the river." for n in range(60))
    return [f"{round_} {n}. {sentences} City number 60" for n in range(count)]


def run_official(checkout: Path, work: Work) -> tuple[float, list[dict[str, Any]]]:
    """Questions per second, and the rows of `dragin_official.record`."""
    import torch

    official = dragin_official.import_official(checkout)
    dragin_official.PASSAGES["sample"] = WordRetriever(dragin_parity.load_passages())
    with torch.inference_mode():
        rag = dragin_official.open_rag(official, work.model, work.parameters)
        rag.generator.generate(work.questions[0], 4)
        begin = time.perf_counter()
        rows = dragin_official.record(rag, work.questions, work.templates)
        seconds = time.perf_counter() - begin
    print(file=sys.stderr)
    return len(rows) / seconds, rows


async def run_ours(server: Vllm, work: Work) -> dict[str, list[Pass]]:
    bench = Bench(server, work)
    made: dict[str, list[Pass]] = {"official": [], "in_context": []}
    try:
        await bench.worker.check()
        await bench.ask(work.questions[:4], "official")  # compiles what is compiled once
        reads, writes = await bench.rates()
        print(f"worker: {reads:.0f} tokens/s read, {writes:.0f} tokens/s written, plain calls")
        for number in range(work.passes):
            for profile in list(made)[:: -1 if number % 2 else 1]:
                one = await bench.ask(work.questions, profile)
                made[profile].append(one)
                ceiling = len(work.questions) / (one.read / reads + one.written / writes)
                share = one.rate() / ceiling
                print(f"ours, {profile}: {one}; {share:.2f} of a ceiling of {ceiling:.3f} (>= 0.8)")
    finally:
        await bench.worker.aclose()
    return made


def compare(base: float, rows: Sequence[dict[str, Any]], made: dict[str, list[Pass]]) -> None:
    found = sum(len(row["turns"]) for row in rows) / len(rows)
    print(f"official code, one at a time: {base:.3f} questions/s, {found:.2f} retrievals each")
    theirs = [None if row["listed"] else Trajectory.of(row) for row in rows]
    ours = made["official"][-1].trajectories
    same = sum(one == other for one, other in zip(theirs, ours, strict=True))
    print(f"identical trajectories: {same} of {len(rows) - theirs.count(None)} that are comparable")
    median = {
        name: statistics.median(one.rate() for one in passes) for name, passes in made.items()
    }
    print(f"ours, official / official code: {median['official'] / base:.2f} (>= 5)")
    print(f"in_context / official: {median['in_context'] / median['official']:.2f} (>= 1.4)")


def make_work(folder: Path, given: argparse.Namespace) -> Work:
    wide = given.size == "wide"
    model = given.model or (save_wide_model(TINY, folder / "model") if wide else TINY)
    templates = Path(shutil.copytree(TINY_TEMPLATES, folder / "templates"))
    shots = [(each / "dragin_demonstrations.txt") for each in (SHIPPED / "full", TINY_TEMPLATES)]
    texts = [shot.read_text(encoding="utf-8").strip() for shot in shots]
    (templates / shots[0].name).write_text("\n".join(texts), encoding="utf-8")
    known = dragin_parity.load_questions()
    questions = known[:: len(known) // given.questions][: given.questions]
    length = given.tokens or (32 if wide else 64)
    parameters = Parameters(given.threshold, length, 25)
    passes = given.passes or (1 if wide else 3)
    return Work(model, TemplateSet(str(templates)), questions, parameters, given.in_context, passes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--size", choices=("own", "wide"), default="own")
    parser.add_argument("--model", type=Path, help="a folder, instead of the shipped model")
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--tokens", type=int, help="L; 64, for wide 32")
    parser.add_argument("--threshold", type=float, default=1.0)
    parser.add_argument("--in-context", type=float, default=1.0, help="θ of in_context")
    parser.add_argument("--passes", type=int, help="of ours; 3, for wide 1")
    given = parser.parse_args()
    configure_logging("error")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = make_work(folder, given)
        base, rows = run_official(given.checkout, work)
        environment = {**plugin_environment(folder / "plugin"), "VLLM_SERVER_DEV_MODE": "1"}
        if given.size == "wide":  # the matrices are all the work; else a core is left to the rest
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            environment["VLLM_CPU_OMP_THREADS_BIND"] = cores
        options = ("--model", str(work.model), *OPTIONS)
        server = stack.enter_context(vllm_server(folder / "log", *options, environment=environment))
        server.wait()
        made = asyncio.run(run_ours(server, work))
    compare(base, rows, made)


if __name__ == "__main__":
    main()
