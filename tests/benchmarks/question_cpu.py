"""CPU of a question in this checkout, as a ratio to another one.

    python -m tests.benchmarks.question_cpu CHECKOUT [--questions 300] [--rounds 7] [--fresh]
        [--routes single,compound,complex]
    python -m tests.benchmarks.question_cpu --passed

Both answer the same scripted questions (single, compound, complex; ten passages of 100 words a
search, every one judged), in processes of their own that take turns; engine and retriever are
scripted, and what the engine takes is subtracted, so what is counted is the service. Prints the
CPU a question in each, and the median of the rounds' ratios. Aims: at most 1.05; 1.2 ms by
`--routes single`. All passages have one text, unless they are `--fresh`: then each of every
question has a text of its own, so that nothing is remembered from one to another.

`--passed` counts what one question with two hops (route `complex`) passes below `service/`: files,
functions, and classes whose methods are called. Aims: 40, 220, 32.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OWN = Path(__file__).parents[2]
FILLER = "The house stands in a quiet street of the old town beside the river. " * 8
PARTS = ["Who composed Norma?", "Where was Vincenzo Bellini born?"]
QUESTION = "In which city was the composer of the opera Norma born?"
WARM_UP = 20


def script() -> list[Any]:
    """Replies by a part of the prompt; of the first that fits."""
    from tests.support.scripted import ScriptStep

    def refined(request: Any) -> str:
        return PARTS["**answer-1**" in request.messages[0].content]

    replies: list[tuple[Any, Any]] = [
        ("Task: decompose", json.dumps({"thought": "two", "decomposition": PARTS})),
        ("Task: refine", refined),
        (["Task: ending", "**answer-2**"], "yes"),
        ("Task: ending", "no"),
        (["Task: relevance", "Passage 1:"], "true"),
        (["Task: relevance", "Passage 2:"], "true"),
        ("Task: relevance", "false"),
        (["Task: answer", "born"], "Catania"),
        ("Task: answer", "Vincenzo Bellini"),
        ("Task: merge", "Norma was composed by Vincenzo Bellini, who was born in Catania."),
        ("Task: final", "Catania"),
    ]
    return [ScriptStep(match=match, reply=reply, times=None) for match, reply in replies]


async def answer(questions: int, routes: Sequence[str], fresh: bool = False) -> float:
    """CPU milliseconds a question, without those of the scripted engine, which gets its requests
    once more to be measured; `fresh`: no two passages have the same text."""
    from service.core.domain import Passage
    from tests.support.asking import ScriptedRetriever, answer_stream, inquiry
    from tests.support.scripted import ScriptedGenerator

    text = f"{FILLER}Norma is by Vincenzo Bellini. He was born in Catania in 1801. {FILLER}"
    hits = {"": [Passage(f"p{n}", f"Passage {n}", text) for n in range(10)]}
    spent = 0.0
    for count in range(-WARM_UP, questions):
        if fresh:
            hits = {"": [Passage(f"p{n}", f"Passage {n}", f"{text}{count}.{n}") for n in range(10)]}
        engine, again = ScriptedGenerator(script()), ScriptedGenerator(script())
        route = routes[count % len(routes)]
        asked = inquiry(engine, ScriptedRetriever(hits), "Who composed Norma?", route=route)
        begin = time.process_time()
        last = [event async for event in answer_stream(asked)][-2]
        middle = time.process_time()
        for request in engine.requests:
            async for _ in again.stream(request):
                pass
        if count >= 0:
            spent += 2 * middle - begin - time.process_time()
        assert last.body.answered, last  # type: ignore[attr-defined]
    return spent * 1000 / questions


async def passed() -> tuple[int, int, int]:
    """The files, functions and classes that a question with two hops passes."""
    from service.core.domain import Passage
    from tests.support.asking import ScriptedRetriever, answer_stream, inquiry
    from tests.support.scripted import ScriptedGenerator

    text = "Norma is by Vincenzo Bellini. He was born in Catania in 1801."
    hits = {"": [Passage(f"p{n}", f"Passage {n}", text) for n in range(10)]}
    own, seen = str(OWN / "service"), set[tuple[str, str]]()

    def see(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(own):
            seen.add((code.co_filename, code.co_qualname))

    asked = inquiry(ScriptedGenerator(script()), ScriptedRetriever(hits), QUESTION, route="complex")
    sys.setprofile(see)
    try:
        last = [event async for event in answer_stream(asked)][-2]
    finally:
        sys.setprofile(None)
    assert last.body.answered, last  # type: ignore[attr-defined]
    functions = {
        (file, name.split(".<locals>")[0]) for file, name in seen if "<module>" not in name
    }
    classes = {(file, name.rpartition(".")[0]) for file, name in functions if "." in name}
    return len({file for file, _ in functions}), len(functions), len(classes)


def measured(checkout: Path, given: argparse.Namespace) -> float:
    """This program in a process that imports that checkout's service."""
    command = [sys.executable, __file__, "--here", "--questions", str(given.questions)]
    command += ["--routes", given.routes, *["--fresh"] * given.fresh]
    told = subprocess.run(
        command, cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    if told.returncode:
        raise SystemExit(f"{checkout} failed:\n{told.stderr}")
    return float(told.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, nargs="?", help="the other checkout")
    parser.add_argument("--passed", action="store_true", help="count what a question passes")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--routes", default="single,compound,complex", help="in turn")
    parser.add_argument("--fresh", action="store_true", help="a text of its own in every passage")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.passed:
        print("files {}, functions {}, classes {}".format(*asyncio.run(passed())))
        return
    if asked.here:
        print(asyncio.run(answer(asked.questions, asked.routes.split(","), asked.fresh)))
        return
    if asked.checkout is None:
        parser.error("name the other checkout")
    pairs = []
    for count in range(asked.rounds):
        order = (OWN, asked.checkout.resolve())
        turn = order[:: 1 if count % 2 else -1]
        taken = {at: measured(at, asked) for at in turn}
        pairs.append((taken[order[0]], taken[order[1]]))
    own, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = sorted(mine / theirs for mine, theirs in pairs)
    print(
        f"here {own:.2f} ms a question, there {other:.2f} ms; ratio {statistics.median(ratios):.3f}"
    )
    print(f"(from {ratios[0]:.3f} to {ratios[-1]:.3f}; aim ≤ 1.05)")


if __name__ == "__main__":
    main()
