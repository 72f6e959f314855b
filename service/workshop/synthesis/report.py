"""Write the output of a run, and a report that accounts for every input item."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from service.core.files import write_whole
from service.workshop.synthesis.contract import Item, OutputRow, Pipeline, Selection
from service.workshop.synthesis.inputs import EXCLUDED, Questions, is_excluded
from service.workshop.synthesis.journal import JournalEntry
from service.workshop.synthesis.teacher import Spent

PER: Final = 1_000_000  # number of tokens to which a price applies
SHOWN_BAD_LINES: Final = 20
UNSELECTED: Final = "not selected"


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices per million tokens, in any currency."""

    prompt: float = 0.0
    completion: float = 0.0

    def of(self, spent: Spent) -> float:
        cost = spent.prompt_tokens * self.prompt + spent.completion_tokens * self.completion
        return cost / PER


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a run.

    In items, `input` equals `written` plus the sum of `dropped`; an invalid line counts as one
    item. `rows` is the number of rows in the output. `lost` counts the missing parts of written
    items, by reason. `run` describes the run. `corpus` is the size of the corpus from which items
    are drawn, if they are drawn.
    """

    run: Mapping[str, Any]
    input: int
    written: int
    dropped: Mapping[str, int]
    rows: int
    lost: Mapping[str, int]
    calls: int = 0
    bad_rounds: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    bad_lines: Sequence[tuple[int, str]] = ()
    corpus: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.input != self.written + sum(self.dropped.values()):
            raise AssertionError(f"{self.input} items are not {self.written} + {self.dropped}")


@dataclass(frozen=True, slots=True)
class Account:
    """All items of a run and their results.

    `refused` counts items that were rejected before the teacher was called, by reason. `excluded`
    are questions that must not occur in the rows.
    """

    items: Sequence[Item[Any]]
    records: Mapping[str, JournalEntry]  # by item id
    refused: Mapping[str, int]
    bad: Sequence[tuple[int, str]]
    corpus: Mapping[str, int] = field(default_factory=dict)
    excluded: Questions = frozenset()


@dataclass(frozen=True, slots=True)
class Result:
    """The rows to write, each with the id of its item, and the report."""

    rows: list[tuple[str, OutputRow]]
    written: int
    dropped: Mapping[str, int]
    lost: Mapping[str, int]


def settle(account: Account, pipeline: Pipeline[Any], seed: int) -> Result:
    """Select the rows, in the order of the items, and count the items without rows."""
    dropped = Counter(account.refused)
    dropped.update(f"bad line: {reason}" for _, reason in account.bad)
    lost: Counter[str] = Counter()
    owner: dict[int, str] = {}
    rows: list[OutputRow] = []
    for item in account.items:
        record = account.records[item.id]
        lost.update(record.lost)
        if record.dropped is not None:
            dropped[record.dropped] += 1
        owner |= {id(row): item.id for row in record.rows}
        allowed = [
            row
            for row in record.rows
            if not is_excluded(row.fields.get("question"), account.excluded)
        ]
        lost[EXCLUDED] += len(record.rows) - len(allowed)
        rows += allowed
    selection: Selection = pipeline.select(rows, random.Random(seed))
    lost.update(selection.lost)
    kept = [(owner[id(row)], row) for row in selection.rows]
    written = {item for item, _ in kept}
    dropped[UNSELECTED] += len(set(owner.values())) - len(written)
    return Result(kept, len(written), dict((+dropped).most_common()), dict((+lost).most_common()))


def report_of(
    result: Result,
    account: Account,
    run: Mapping[str, Any],
    spent: Spent | None = None,
    prices: Prices | None = None,
) -> Report:
    cost = spent or Spent()
    return Report(
        run=run,
        input=len(account.items) + sum(account.refused.values()) + len(account.bad),
        written=result.written,
        dropped=result.dropped,
        rows=len(result.rows),
        lost=result.lost,
        calls=cost.calls,
        bad_rounds=dict(cost.bad.most_common()),
        prompt_tokens=cost.prompt_tokens,
        completion_tokens=cost.completion_tokens,
        cost=(prices or Prices()).of(cost),
        bad_lines=list(account.bad[:SHOWN_BAD_LINES]),
        corpus=account.corpus,
    )


def files_of(output: Path, kinds: Sequence[str]) -> dict[str, Path]:
    """Return the output file of each kind of row: `rows.jsonl`, or files such as
    `rows.labeler.jsonl`."""
    return {
        kind: output.with_name(f"{output.stem}.{kind}{output.suffix}") if kind else output
        for kind in kinds
    }


def write_rows(
    files: Mapping[str, Path], rows: Sequence[tuple[str, OutputRow]], run: Mapping[str, Any]
) -> None:
    """Write the output files atomically."""
    for kind, path in files.items():
        own = (row for row in rows if row[1].kind == kind)
        lines = (json.dumps(_with_provenance(*row, run), ensure_ascii=False) for row in own)
        write_whole(path, "".join(f"{line}\n" for line in lines))


def _with_provenance(item: str, row: OutputRow, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the fields of `service.workshop.facts.rows.RowProvenance` and how to
    reproduce it."""
    source = row.source
    made = {name: run[name] for name in run if name != "format"}
    of = {
        "item": item,
        "sources": source.ids,
        "titles": source.titles,
        "answer_title": source.answer_titles[0] if source.answer_titles else None,
        "written": source.question is not None,
    }
    return {**row.fields, "provenance": made | of}


def write_report(path: Path, report: Report) -> None:
    write_whole(path, json.dumps(asdict(report), ensure_ascii=False, indent=2) + "\n")


def table(report: Report) -> Table:
    """Return the report as a table for the terminal."""
    shown = Table(title=f"{report.run['pipeline']}, teacher: {report.run['teacher']}")
    shown.add_column("")
    shown.add_column("count", justify="right")
    for name, count in report.corpus.items():
        shown.add_row(name, f"{count:,}")
    if report.corpus:
        shown.add_section()
    shown.add_row("input", f"{report.input:,}")
    shown.add_row("written", f"{report.written:,}")
    for reason, count in report.dropped.items():
        shown.add_row(f"  dropped: {reason}", f"{count:,}")
    shown.add_section()
    shown.add_row("rows", f"{report.rows:,}")
    for reason, count in report.lost.items():
        shown.add_row(f"  left out of items: {reason}", f"{count:,}")
    if report.calls:
        _add_cost(shown, report)
    return shown


def _add_cost(shown: Table, report: Report) -> None:
    shown.add_section()
    shown.add_row("calls", f"{report.calls:,}")
    for reason, count in report.bad_rounds.items():
        shown.add_row(f"  unusable: {reason}", f"{count:,}")
    shown.add_row("prompt tokens", f"{report.prompt_tokens:,}")
    shown.add_row("completion tokens", f"{report.completion_tokens:,}")
    if report.cost:
        shown.add_row("cost", f"{report.cost:,.2f}")
