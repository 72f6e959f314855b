"""What the default service answers, end to end: the figures of a model card that need collections.

    python -m tests.benchmarks.default_service --data DATA --out OUT [--only squad,nq,…] [--n 200]
    python -m tests.benchmarks.default_service --data DATA --out OUT --only report --report 1

OUT keeps the collections, the rows and a report for each part; the same command goes on with them.
Everything is the default: engine, route (`auto`), loop and retriever, if no method is named.

squad, nq      people's questions over the passages of `squad`, `squad_train`, `nq_passages` and
               2Wiki in one collection
bridges        made-up bridges over the passages of 2Wiki (`made_up.jsonl`), as
               `complex` questions by ANRAG
comparisons    made-up comparisons over the same passages, in the same way
dragin         the bridges by DRAGIN
report         all questions of the sets that only measure, each over its own passages; LOG.md
               notes each use
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
from rich.console import Console

from service.core.settings import Settings, load_settings
from service.evaluation.command import EvaluationOptions, evaluate_datasets
from service.evaluation.comparison import interval
from service.evaluation.document import shown, values
from service.evaluation.report import by_dataset
from service.evaluation.rows import read_rows
from service.retrieval.ingest.pipeline import ingest
from service.runtime import open_runtime
from tests.benchmarks.loops_table import (
    LONGEST_S,
    MOST_MEASUREMENTS,
    PATIENT,
    REPORT,
    SEED,
    note_of,
)
from tests.benchmarks.made_up import CORPUS, made_up_questions

EVERYTHING: Final = ("squad", "squad_train", "nq_passages", CORPUS)
ANRAG: Final = "complex/anrag"
SCORES: Final = ("em", "f1")


class Part(NamedTuple):
    """Questions of a folder, or made-up ones of a `kind`, over the passages of the folders."""

    corpora: tuple[str, ...]
    questions: str | None = None
    kind: str | None = None
    method: str = "auto"

    @property
    def collection(self) -> str:
        return "all" if len(self.corpora) > 1 else self.corpora[0]


PARTS: Final = {
    "squad": Part(EVERYTHING, "squad"),
    "nq": Part(EVERYTHING, "nq_passages"),
    "bridges": Part((CORPUS,), kind="bridge", method=ANRAG),
    "comparisons": Part((CORPUS,), kind="comparison", method=ANRAG),
    "dragin": Part((CORPUS,), kind="bridge", method="complex/dragin"),
}
MEASURED: Final = {name: Part((name,), name) for name in REPORT}


def rows_of(data: Path, part: Part, size: int) -> list[dict[str, Any]]:
    """At most `size` questions, always the same."""
    if part.kind:
        return made_up_questions(part.kind, size)
    lines = (data / str(part.questions) / "questions.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in lines.splitlines()]
    random.Random(SEED).shuffle(rows)
    return rows[:size]


async def fill(data: Path, settings: Settings, part: Part) -> None:
    """Store the passages of a part. What is stored already is passed over."""
    async with open_runtime(settings) as runtime:
        collections = runtime.retrieval.collections
        if part.collection not in await collections.names():
            await collections.create(part.collection)
        files = [data / corpus / "corpus.jsonl" for corpus in part.corpora]
        await ingest(files, part.collection, collections)


async def measure(options: argparse.Namespace, name: str, part: Part) -> list[str]:
    """Ask a part's questions. Returns the lines of the table."""
    settings = load_settings(options.config, {"data_dir": options.out / "data", **PATIENT})
    await fill(options.data, settings, part)
    out = options.out / name
    out.mkdir(parents=True, exist_ok=True)
    file = out / "questions.jsonl"
    lines = (json.dumps(row, ensure_ascii=False) for row in rows_of(options.data, part, options.n))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = EvaluationOptions(
        [f"{name}={file}"],
        methods=[part.method],
        collections=[part.collection],
        timeout_s=LONGEST_S,
        concurrency=options.concurrency,
        out=out,
        note=note_of([name], options.report),
    )
    await evaluate_datasets(settings, given, Console(stderr=True))
    found = by_dataset(read_rows(out))[name][part.method]
    scores = " | ".join(shown(interval(values(found, score))) for score in SCORES)
    return [f"| {name} | {part.method} | {scores} | {len(found)} |"]


def parts_of(named: Sequence[str], measurement: int | None) -> dict[str, Part]:
    """The parts that are named. Raises ValueError where sets that only measure have no count."""
    if "report" in named and not measurement:
        raise ValueError("report: say by --report N the how many-th measurement it is")
    parts = {name: PARTS[name] for name in named if name != "report"}
    return parts | (MEASURED if "report" in named else {})


async def main(options: argparse.Namespace) -> int:
    table = ["| part | method | EM | F1 | n |", "|---|---|---|---|---|"]
    for name, part in parts_of(options.only.split(","), options.report).items():
        table += await measure(options, name, part)
        print("\n".join(table), flush=True)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora and questions")
    parser.add_argument("--out", type=Path, required=True, help="folder to keep")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--n", type=int, default=200, help="at most so many questions of a part")
    parser.add_argument("--concurrency", type=int, default=4, help="how many at the same time")
    parser.add_argument("--config", type=Path, help="settings file")
    parser.add_argument(
        "--report", type=int, choices=range(1, MOST_MEASUREMENTS + 1),
        help="the how many-th measurement of the sets that only measure this is",
    )  # fmt: skip
    sys.exit(anyio.run(main, parser.parse_args()))
