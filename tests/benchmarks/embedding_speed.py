"""MiniLM in int8 on ONNX Runtime against sentence-transformers, on the CPU, in one run.

    pip install sentence-transformers==6.2.0      # not a dependency of the product
    python -m tests.benchmarks.embedding_speed --data DATA [--threads N] [--tasks squad musique]

Rounds alternate, with the same passages, batches of 32 by length, and as many threads; printed are
medians of the rounds' ratios by wall clock and by CPU time, which other work on the machine
disturbs less. DATA holds `<task>/corpus.jsonl` and `questions.jsonl`.

Targets: passages per second >= 2 x, a query <= 0.4 x, mean cosine to the float model >= 0.99, and
recall@10 (of each question's gold passages in the task's corpus) within 0.01 of it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from service.core.domain import Passage
from service.retrieval.embedding import MINILM, passage_input
from service.retrieval.embedding.embedders import load_minilm
from service.workshop.compilation.bert import minilm_folder

BATCH = 32
TOP_K = 10
SPEED, QUERY, COSINE, RECALL = 2.0, 0.4, 0.99, 0.01

Encode = Callable[[Sequence[str]], Any]


@dataclass(frozen=True)
class Task:
    name: str
    ids: list[str]
    passages: list[str]
    questions: list[str]
    gold: list[set[str]]

    @classmethod
    def read(cls, data: Path, name: str) -> Task:
        corpus = lines(data / name / "corpus.jsonl")
        asked = lines(data / name / "questions.jsonl")
        return cls(
            name,
            [row["id"] for row in corpus],
            [passage_input(Passage(row["id"], row["title"], row["text"])) for row in corpus],
            [row["question"] for row in asked],
            [set(row["supporting_passage_ids"]) for row in asked],
        )


def lines(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


def ours(threads: int) -> Encode:
    encode = load_minilm(MINILM, threads)
    return lambda texts: np.array(encode(texts), np.float32)


def theirs(threads: int) -> Encode:
    try:
        import sentence_transformers
        import torch
    except ImportError as error:
        raise SystemExit(
            f"{error.name} is not here: pip install sentence-transformers==6.2.0"
        ) from None
    torch.set_num_threads(threads)
    model = sentence_transformers.SentenceTransformer(str(minilm_folder()), device="cpu")
    model.max_seq_length = MINILM.max_length
    return lambda texts: model.encode(list(texts), batch_size=BATCH, show_progress_bar=False)


def batches(encode: Encode, texts: Sequence[str]) -> Any:
    """In the order of `texts`; embedded by length, as the product and sentence-transformers do."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    found = np.concatenate([encode([texts[index] for index in part]) for part in parts])
    return found[np.argsort(order)]


def timed(encode: Encode, texts: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one pass over `texts`."""
    wall, cpu = time.perf_counter(), time.process_time()
    batches(encode, texts)
    return time.perf_counter() - wall, time.process_time() - cpu


def ratios(one: Encode, two: Encode, texts: Sequence[str], rounds: int) -> tuple[float, float]:
    """`two`'s seconds over `one`'s, by wall clock and by CPU time."""
    pairs = [(timed(one, texts), timed(two, texts)) for _ in range(rounds)]
    seconds = [statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
    print(
        f"  {len(texts)} texts, {rounds} rounds: ours {len(texts) / seconds[0]:.1f}/s "
        f"({1000 * seconds[0] / len(texts):.1f} ms each), sentence-transformers "
        f"{len(texts) / seconds[1]:.1f}/s ({1000 * seconds[1] / len(texts):.1f} ms each)"
    )
    wall = statistics.median(two[0] / one[0] for one, two in pairs)
    return wall, statistics.median(two[1] / one[1] for one, two in pairs)


def cosines(one: Any, two: Any) -> Any:
    return (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)


def recall(task: Task, passages: Any, questions: Any) -> float:
    best = np.argsort(-questions @ passages.T, axis=1)[:, :TOP_K]
    shares = [
        len({task.ids[index] for index in row} & gold) / len(gold)
        for row, gold in zip(best, task.gold, strict=True)
    ]
    return statistics.fmean(shares)


def check(name: str, value: float, target: str, met: bool) -> bool:
    print(f"{name}: {value:.4f} (target {target}: {'met' if met else 'MISSED'})")
    return met


def speed(mine: Encode, other: Encode, task: Task, sample: int, rounds: int) -> bool:
    step = max(1, len(task.passages) // sample)
    texts = task.passages[::step][:sample]
    for encode in (mine, other):
        encode(texts[:BATCH])
    print("passages")
    wall, cpu = ratios(mine, other, texts, rounds)
    met = check("passages per second, wall", wall, f">= {SPEED} x", wall >= SPEED)
    print(f"passages per CPU second: {cpu:.2f} x")
    print("single queries")
    rates = [query_ratio(mine, other, query) for query in task.questions[: 5 * rounds]]
    query = statistics.median(rate for rate, _ in rates)
    print(f"query by CPU time: {statistics.median(rate for _, rate in rates):.2f} x")
    return check("a query's time, wall", query, f"<= {QUERY} x", query <= QUERY) and met


def query_ratio(mine: Encode, other: Encode, query: str) -> tuple[float, float]:
    """Our seconds over theirs, by wall clock and by CPU time."""
    one, two = timed(mine, [query]), timed(other, [query])
    return one[0] / two[0], one[1] / two[1]


def quality(mine: Encode, other: Encode, task: Task) -> bool:
    passages = batches(mine, task.passages), batches(other, task.passages)
    questions = batches(mine, task.questions), batches(other, task.questions)
    near = np.concatenate([cosines(*passages), cosines(*questions)])
    print(f"{task.name}: {len(task.passages)} passages, {len(task.questions)} questions")
    found = [recall(task, passages[side], questions[side]) for side in (0, 1)]
    print(f"least cosine {near.min():.4f}; recall@{TOP_K} {found[0]:.4f} and {found[1]:.4f}")
    apart = found[1] - found[0]
    return all(
        [
            check(
                "mean cosine to float", float(near.mean()), f">= {COSINE}", near.mean() >= COSINE
            ),
            check("recall lost", apart, f"<= {RECALL}", apart <= RECALL),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sample", type=int, default=128, help="passages of a timed round")
    parser.add_argument("--tasks", nargs="+", default=["squad", "musique"])
    given = parser.parse_args()
    mine, other = ours(given.threads), theirs(given.threads)
    tasks = [Task.read(given.data, name) for name in given.tasks]
    met = [speed(mine, other, tasks[-1], given.sample, given.rounds)]
    met += [quality(mine, other, task) for task in tasks]
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
