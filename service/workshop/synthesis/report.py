"""Write the output of a run, and a report that accounts for every input item."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.table import Column, Table

from service.core.files import save_whole
from service.workshop.synthesis.contract import OutputRow, Pipeline
from service.workshop.synthesis.journal import JournalEntry
from service.workshop.synthesis.teacher import Spent

SHOWN_BAD_LINES: Final = 20
UNSELECTED: Final = "not selected"


@dataclass(frozen=True)
class Report:
    """The report of a run.

    In items, `input` equals `written` plus the sum of `dropped`; an invalid line counts as one
    item. `rows` is the number of rows in the output. `lost` counts the missing parts of written
    items, by reason. `run` describes the run, and `spent` what the teacher cost.
    """

    run: Mapping[str, Any]
    input: int
    written: int
    dropped: Mapping[str, int]
    rows: int
    lost: Mapping[str, int]
    spent: Spent
    bad_lines: Sequence[tuple[int, str]]

    def __post_init__(self) -> None:
        if self.input != self.written + sum(self.dropped.values()):
            raise AssertionError(f"{self.input} items are not {self.written} + {self.dropped}")


def settle(
    pipeline: Pipeline[Any],
    records: Sequence[tuple[str, JournalEntry]],
    refused: Counter[str],
    seed: int,
) -> tuple[list[tuple[str, OutputRow]], dict[str, Any]]:
    """Select the rows to write, each with the id of its item, and count the items without rows.

    `records` are the results of the items, in order, by item id, and `refused` counts the items and
    lines that were rejected before the teacher was called. Returns the rows, and the counts of the
    report.
    """
    dropped, lost = Counter(refused), Counter[str]()
    owner: dict[int, str] = {}
    rows: list[OutputRow] = []
    for item, record in records:
        lost.update(record.lost)
        if record.dropped is not None:
            dropped[record.dropped] += 1
        owner |= {id(row): item for row in record.rows}
        rows += record.rows
    selected, unselected = pipeline.select(rows, random.Random(seed))
    lost.update(unselected)
    kept = [(owner[id(row)], row) for row in selected]
    written = {item for item, _ in kept}
    dropped[UNSELECTED] += len(set(owner.values())) - len(written)
    counts = {
        "input": len(records) + refused.total(),
        "written": len(written),
        "dropped": dict((+dropped).most_common()),
        "rows": len(kept),
        "lost": dict((+lost).most_common()),
    }
    return kept, counts


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
        of_kind = (row for row in rows if row[1].kind == kind)
        lines = (json.dumps(_with_provenance(*row, run), ensure_ascii=False) for row in of_kind)
        save_whole(path, "".join(f"{line}\n" for line in lines))


def _with_provenance(item: str, row: OutputRow, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its `service.workshop.rows.RowProvenance`."""
    made = {name: run[name] for name in run if name != "format"}
    return {**row.fields, "provenance": made | {"item": item} | row.source.model_dump()}


def table(report: Report) -> Table:
    """Return the report as a table for the terminal."""
    shown = Table("", Column("count", justify="right"))
    shown.title = f"{report.run['pipeline']}, teacher: {report.run['teacher']}"
    lines = {
        "input": report.input,
        "written": report.written,
        **{f"  dropped: {reason}": count for reason, count in report.dropped.items()},
        "rows": report.rows,
        **{f"  left out of items: {reason}": count for reason, count in report.lost.items()},
        "calls": report.spent.calls,
        **{f"  unusable: {reason}": n for reason, n in report.spent.bad.most_common()},
        "prompt tokens": report.spent.prompt_tokens,
        "completion tokens": report.spent.completion_tokens,
    }
    for name, count in lines.items():
        shown.add_row(name, f"{count:,}")
    return shown
