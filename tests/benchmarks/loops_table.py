"""Every loop and route on one held-out set: EM, F1, accuracy, and what each question cost.

    python -m tests.benchmarks.loops_table --data DATA [--n 25] [--work FOLDER] [--config FILE]

Questions of four kinds (`service.workshop.facts.heldout`) over all passages of the 2Wiki corpus, by
the shipped model, each asked by the route of its kind with every loop, without retrieval
(`direct`), and once as `auto`, where the model routes. FOLDER keeps the ingested collection and the
rows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import orjson

from service.answer.request import parse_request
from service.core.concurrency import closing
from service.core.domain import RequestLoop
from service.core.errors import LoopUnavailable
from service.core.settings import load_settings
from service.evaluation.datasets import GoldQuestion, load_dataset
from service.evaluation.report import summary
from service.evaluation.rows import Row
from service.evaluation.runner import Plan, evaluate
from service.retrieval.ingest.pipeline import ingest
from service.runtime import Runtime, open_runtime
from service.workshop.facts.heldout import CORPUS, KINDS, heldout_questions

NAME = "wiki"
LOOPS: tuple[RequestLoop, ...] = ("anrag", "autorag", "dragin", "efficientrag")
COLUMNS = (
    "em", "f1", "accuracy", "compound_accuracy", "supporting_hit",
    "steps", "retrievals", "llm_calls", "seconds",
)  # fmt: skip
AT_ONCE = 2


async def rows_of(
    runtime: Runtime, questions: Sequence[GoldQuestion], mode: str
) -> list[Row] | str:
    """The rows of one way to ask; or why this deployment cannot ask so."""
    fields = {
        "question": questions[0].question,
        "collection": NAME,
        "loop": mode if mode in LOOPS else "default",
        "route": "direct" if mode == "direct" else "auto",
    }
    try:
        request = await runtime.prepare(parse_request(fields))
    except LoopUnavailable as error:
        return error.detail
    plan = Plan(request, concurrency=AT_ONCE, gold_routes=mode in LOOPS)
    async with closing(evaluate(questions, runtime.ask, plan)) as rows:
        return [row async for row in rows]


def line(mode: str, kind: str, rows: Sequence[Row]) -> str:
    means = summary(kind, rows).means
    cells = ["–" if (mean := means[name]) is None else f"{mean:.2f}" for name in COLUMNS]
    return f"| {mode} | {kind} | {len(rows)} | " + " | ".join(cells) + " |"


def show(mode: str, rows: Sequence[Row]) -> None:
    for kind in KINDS:
        members = [row for row in rows if row.id.startswith(kind)]
        if members:
            print(line(mode, kind, members))
    print(line(mode, "all", rows), flush=True)


async def main(options: argparse.Namespace, work: Path) -> None:
    file = work / "questions.jsonl"
    made = heldout_questions(options.data, options.n)
    file.write_bytes(b"\n".join(map(orjson.dumps, made)))
    questions = load_dataset(file)
    settings = load_settings(options.config, {"data_dir": work / "data"})
    async with open_runtime(settings) as runtime:
        assert runtime.stores is not None
        await runtime.stores.collections.create(NAME)
        await ingest([options.data / CORPUS / "corpus.jsonl"], NAME, runtime.stores.collections)
        print("| asked | kind | n | " + " | ".join(COLUMNS) + " |")
        print("|" + "---|" * (len(COLUMNS) + 3))
        for mode in options.modes:
            rows = await rows_of(runtime, questions, mode)
            if isinstance(rows, str):
                print(f"| {mode} | {rows} |")
                continue
            show(mode, rows)
            lines = [row.as_line() for row in rows]
            (work / f"{mode}.jsonl").write_bytes(b"".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora and questions")
    parser.add_argument("--n", type=int, default=25, help="how many questions of each kind")
    parser.add_argument("--work", type=Path, help="folder to keep")
    parser.add_argument("--config", type=Path, help="settings file")
    parser.add_argument("--modes", nargs="+", default=("direct", "auto", *LOOPS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.work or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        anyio.run(main, arguments, folder)
