"""What a labeled hop costs beside ONNX Runtime's session alone, in one run.

    python -m tests.benchmarks.labeler_cost [--labeler FOLDER] [--questions N] [--together N]

A hop is a question and ten passages of the sample. Ours: texts in, labels out, through the adapter
that the service uses, its thread, batcher, tokenizer and reading of the marks. Bare: the session's
own time on the same inputs, tokenised before and unpadded, one call for each. Rounds alternate;
printed are medians of their ratios by wall clock and by CPU time.

Target: <= 1.3 x, one question at a time, and `--together` at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from service.core.concurrency import gather
from service.encoders.checkpoint import read_card
from service.encoders.efficientrag import SHIPPED, EncoderLabeler
from service.encoders.inputs import encode_passages, passage_text
from service.encoders.session import INPUTS, load_session
from service.retrieval.collections.sample import Sample

MOST = 1.3
PASSAGES = 10
Hop = tuple[str, list[str]]


@dataclass(frozen=True)
class Seconds:
    wall: float
    cpu: float


def hops(count: int) -> list[Hop]:
    """Questions of the sample, each with ten passages of it."""
    folder = Sample.shipped().folder
    corpus = [orjson.loads(row) for row in (folder / "corpus.jsonl").read_bytes().splitlines()]
    asked = [orjson.loads(row) for row in (folder / "questions.jsonl").read_bytes().splitlines()]
    texts = [passage_text(row["title"], row["text"]) for row in corpus]
    made = []
    for number in range(count):
        first = number * PASSAGES % (len(texts) - PASSAGES)
        question = asked[number % len(asked)]["question"]
        made.append((question, texts[first : first + PASSAGES]))
    return made


def timed(run: Callable[[], object]) -> Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def bare(folder: Path, work: Sequence[Hop], threads: int) -> Callable[[], object]:
    session = load_session(folder, read_card(folder, "labeler"), threads)
    feeds = []
    for question, passages in work:
        most = session.card.max_pieces
        for each in encode_passages(session.tokenizer, question, passages, most):
            ids, types = np.array([each.ids]), np.array([each.types])
            feeds.append(dict(zip(INPUTS, (ids, np.ones_like(ids), types), strict=True)))
    print(
        f"{len(feeds)} inputs, {statistics.mean(f[INPUTS[0]].size for f in feeds):.0f} pieces each"
    )
    return lambda: [session.runtime.run(None, feed) for feed in feeds]


async def label(labeler: EncoderLabeler, work: Sequence[Hop], together: int) -> None:
    for start in range(0, len(work), together):
        await gather([call(labeler, hop) for hop in work[start : start + together]])


def call(labeler: EncoderLabeler, hop: Hop) -> Callable[[], Any]:
    return lambda: labeler.label(*hop)


def compare(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int, name: str, count: int
) -> bool:
    ours(), theirs()
    pairs = [(timed(ours), timed(theirs)) for _ in range(rounds)]
    wall = statistics.median(one.wall / two.wall for one, two in pairs)
    cpu = statistics.median(one.cpu / two.cpu for one, two in pairs)
    each = 1000 * statistics.median(one.wall for one, _ in pairs) / count
    met = wall <= MOST
    print(
        f"{name}: {each:.0f} ms a hop; wall {wall:.2f} x, CPU {cpu:.2f} x "
        f"(target <= {MOST} x: {'met' if met else 'MISSED'})"
    )
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labeler", type=Path, default=SHIPPED / "labeler")
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--together", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    work = hops(given.questions)
    labeler = EncoderLabeler(given.labeler, given.threads)
    if problem := labeler.problem():
        raise SystemExit(problem)
    alone = bare(given.labeler, work, given.threads)
    with asyncio.Runner() as runner:
        met = [
            compare(
                lambda n=together: runner.run(label(labeler, work, n)),
                alone,
                given.rounds,
                f"{together} at a time",
                len(work),
            )
            for together in (1, given.together)
        ]
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
