"""The table of METHODS.md (section 9.9): every method on sets of several kinds, by one evaluation.

    python -m tests.benchmarks.loops_table --data DATA --out OUT [--questions 20] [--config FILE]
    python -m tests.benchmarks.loops_table --data DATA --out OUT --report 1 [--questions 20]
    python -m tests.benchmarks.loops_table --data DATA --out OUT --write

OUT keeps the collections, the rows, `report.html` and `report.md`; the same command goes on with
them. The questions are drawn at random, always alike: of `squad`, of `nq_passages`, of `musique`,
and made-up bridges over the passages of 2Wiki (`made_up.jsonl`), each over all
passages of its own folder. With `--report N`, the multi-hop questions are those of the sets that
only measure (`report_hotpotqa`, `report_2wikimultihopqa`, `report_musique`), of which the report
says that this is their N-th measurement; LOG.md notes each, and there are three at most. With
`--write`, the section of METHODS.md is written anew from the rows, after what is lacking was asked.

`--sets` and `--methods` measure something else with the same questions, as the model cards do: of
the default service (`squad_pooled nq_pooled`, by `auto`) over the passages of `squad`,
`squad_train`, `nq_passages` and 2Wiki in one collection, and of the loops on `bridges` and made-up
`comparisons`.

`loops_table.tar.xz` contains the rows behind that table. Unpack it into OUT to continue
them with more `--questions`, which needs the same model and settings.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Final, NamedTuple

import anyio
from rich.console import Console

from service.core.settings import Settings, load_settings
from service.evaluation.command import EvaluationOptions, evaluate_datasets
from service.evaluation.comparison import interval, unproven, verdicts
from service.evaluation.markup import Page
from service.evaluation.means import LABELS, by_dataset, means_of
from service.evaluation.methods import VARIANT, known_methods
from service.evaluation.report import COSTS, MARK, MEASURE, shown, values
from service.evaluation.rows import Row, machine, read_rows
from service.retrieval.ingest.pipeline import ingest
from service.runtime import open_runtime
from tests.benchmarks.made_up import CORPUS, made_up_questions

DOCUMENT: Final = Path(__file__).parents[2] / "service" / "METHODS.md"
HEADING: Final = "### 9.9 The methods with the shipped model\n"
BRIDGES: Final = "bridges"
MADE: Final = 200
LONGEST_S: Final = 300
# The limits of busy machines, where a side must not be left out, nor a slow reply be a failure.
PATIENT: Final = {"retrieval.timeout_s": 60, "engines.default.timeout_s": LONGEST_S}
SEED: Final = 0
# What the baselines do with more calls and with more tokens, for the rule of equal budgets.
METHODS: Final = (
    "all", "one_retrieval@top_k=8", "one_retrieval@samples=4", "one_retrieval@samples=8",
    "entropy_gate@samples=8",
)  # fmt: skip
TOLD: Final = """\
The table shows F1 with 95 % intervals, measured with the shipped model on {asked} questions of each
set, and the average cost of a question, asked {concurrency} at a time ({machine}; {hours:.1f} hours
in all). {mark} marks a method that does not beat plain retrieval (`one_retrieval`) or the entropy
gate when these may spend as many LLM calls or tokens, in the variants {variants}. A method without
a mark may still not beat them; `direct`, `no_retrieval` and these two are never marked. With
another model the order differs: before you choose, evaluate yours on your own questions with
`revelator evaluate`. The table is made by the following command, in which N counts the measurements
of HotpotQA, 2WikiMultihopQA and MuSiQue:"""


class Source(NamedTuple):
    """A set: the folder of its questions below DATA, or the kind of made-up ones, the folders of
    its passages, and the route of its questions."""

    questions: str
    corpora: tuple[str, ...]
    route: str


FACTS: Final = {
    "squad": Source("squad", ("squad",), "single"),
    "nq": Source("nq_passages", ("nq_passages",), "single"),
}
DEVELOPMENT: Final = {
    "musique": Source("musique", ("musique",), "complex"),
    BRIDGES: Source("bridge", (CORPUS,), "complex"),
}
POOL: Final = ("squad", "squad_train", "nq_passages", CORPUS)
OTHERS: Final = {
    "squad_pooled": Source("squad", POOL, "single"),
    "nq_pooled": Source("nq_passages", POOL, "single"),
    "comparisons": Source("comparison", (CORPUS,), "complex"),
}
REPORT: Final = {
    name: Source(name, (name,), "complex")
    for name in ("report_hotpotqa", "report_2wikimultihopqa", "report_musique")
}
MOST_MEASUREMENTS: Final = 3  # of the sets that only measure
SETS: Final = FACTS | DEVELOPMENT | OTHERS | REPORT
TITLES: Final = {
    "squad": "SQuAD", "nq": "NQ", "report_hotpotqa": "HotpotQA",
    "report_2wikimultihopqa": "2WikiMultihopQA", "report_musique": "MuSiQue", "musique": "MuSiQue",
    BRIDGES: "made-up bridges",
}  # fmt: skip


def sets_of(named: Sequence[str] | None, measurement: int | None) -> list[str]:
    """The sets to ask: those named, or those of development, or those that only measure. Raises
    ValueError where these are named without the count of their measurements."""
    chosen = list(named or FACTS | (REPORT if measurement else DEVELOPMENT))
    if not measurement and (held := [name for name in chosen if name in REPORT]):
        raise ValueError(f"{', '.join(held)}: say by --report N the how many-th measurement it is")
    return chosen


def note_of(names: Sequence[str], measurement: int | None) -> str | None:
    """What the report says of the use of the sets that only measure."""
    held = [name for name in names if name in REPORT]
    if not held:
        return None
    return f"Measurement {measurement} of at most {MOST_MEASUREMENTS} of {', '.join(held)}."


def rows_of(data: Path, source: Source) -> list[dict[str, Any]]:
    """All questions of a set, in an order of chance that is always the same."""
    rows = made_up_questions(source.questions, MADE)
    if not rows:
        lines = (data / source.questions / "questions.jsonl").read_text(encoding="utf-8")
        rows = [json.loads(line) for line in lines.splitlines()]
    random.Random(SEED).shuffle(rows)
    return rows


def collection_of(name: str) -> str:
    """One for all sets over the pool."""
    return "pool" if SETS[name].corpora == POOL else name


async def prepare(data: Path, out: Path, settings: Settings, names: Sequence[str]) -> list[str]:
    """Write the questions and fill the collections, unless they are there. Returns the datasets."""
    files = {name: out / "questions" / f"{name}.jsonl" for name in names}
    (out / "questions").mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        if not file.exists():
            lines = [json.dumps(row, ensure_ascii=False) for row in rows_of(data, SETS[name])]
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    async with open_runtime(settings) as runtime:
        collections = runtime.retrieval.collections
        for name in names:
            collection = collection_of(name)
            if collection not in await collections.names():
                await collections.create(collection)
            # What is stored already is passed over.
            corpora = [data / corpus / "corpus.jsonl" for corpus in SETS[name].corpora]
            await ingest(corpora, collection, collections)
    return [f"{name}={file}" for name, file in files.items()]


async def main(options: argparse.Namespace) -> int:
    own = {"data_dir": options.out / "data", **({} if options.config else PATIENT)}
    settings = load_settings(options.config, own)
    names = sets_of(options.sets, options.report)
    given = EvaluationOptions(
        await prepare(options.data, options.out, settings, names),
        methods=options.methods,
        collections=[f"{name}={collection_of(name)}" for name in names],
        routes=[f"{name}={SETS[name].route}" for name in names],
        timeout_s=LONGEST_S,
        limit=options.questions,
        concurrency=options.concurrency,
        out=options.out,
        note=note_of(names, options.report),
    )
    code = await evaluate_datasets(settings, given, Console())
    if options.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        section = section_of(read_rows(options.out), options.concurrency)
        DOCUMENT.write_text(with_section(text, section), encoding="utf-8")
    return code


def section_of(rows: Sequence[Row], concurrency: int) -> str:
    """The section: F1 by set with intervals and marks, and what a question costs on the average."""
    datasets = by_dataset(rows)
    marked = {name: unproven(verdicts(found, MEASURE)) for name, found in datasets.items()}
    methods = list(dict.fromkeys(row.method for row in rows))
    lines = [_cells(name, datasets, marked) for name in known_methods() if name in methods]
    header = [
        "method",
        *(TITLES.get(name, name) for name in datasets),
        *(LABELS[cost] for cost in COSTS),
    ]
    page = Page("")
    page.table(header, lines)
    table = page.markdown()
    asked = max(len(own) for methods_of in datasets.values() for own in methods_of.values())
    told = TOLD.format(
        asked=asked, concurrency=concurrency, machine=machine(), mark=MARK,
        hours=sum(row.wall_ms or 0 for row in rows) / concurrency / 3_600_000,
        variants=", ".join(f"`{method}`" for method in methods if VARIANT in method),
    )  # fmt: skip
    paragraphs = [fill(each, 115, break_on_hyphens=False) for each in told.split("\n\n")]
    report = " --report N" if any(name in REPORT for name in datasets) else ""
    command = (
        f"python -m tests.benchmarks.loops_table --data DIR --out OUT{report} "
        f"--questions {asked} --concurrency {concurrency} --write"
    )
    parts = [*paragraphs, f"`{command}`", table[table.index("|") :].strip()]
    return f"{HEADING}\n" + "\n\n".join(parts) + "\n"


def _cells(method: str, datasets: dict[str, Any], marked: dict[str, set[str]]) -> list[str]:
    scores = []
    for name, methods in datasets.items():
        found = values(methods.get(method, []), "f1")
        mark = f" {MARK}" if method in marked[name] else ""
        scores.append(f"{shown(interval(found))}{mark}" if found else "–")
    everything = [row for methods in datasets.values() for row in methods.get(method, [])]
    means = means_of(everything)
    costs = [means[cost] for cost in COSTS]
    return [method, *scores, *("–" if cost is None else f"{cost:,.1f}" for cost in costs)]


def with_section(text: str, section: str) -> str:
    """Put the section in the place of the one that is there, or at the end."""
    before, _, after = text.partition(HEADING)
    rest = after.partition("\n#")
    return f"{before}{section.rstrip()}\n" + "".join(rest[1:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora and questions")
    parser.add_argument("--out", type=Path, required=True, help="folder to keep")
    parser.add_argument("--questions", type=int, default=20, help="how many of each set")
    parser.add_argument("--concurrency", type=int, default=4, help="how many at the same time")
    parser.add_argument("--sets", nargs="+", choices=SETS, help="default: those of development")
    parser.add_argument(
        "--report",
        type=int,
        choices=range(1, MOST_MEASUREMENTS + 1),
        help="take the sets that only measure, of which this is the how many-th measurement",
    )
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--config", type=Path, help="settings file")
    parser.add_argument("--write", action="store_true", help="write the section of METHODS.md")
    sys.exit(anyio.run(main, parser.parse_args()))
