"""`revelator synthesize PIPELINE` reads the input, calls the teacher, and writes rows and a
report, which accounts for every input item.

The journal of a run has a line for each finished item, with which an interrupted run is resumed.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Column, Table

from service.core.concurrency import as_done, closing
from service.core.domain import Passage, RetrieverName
from service.core.errors import (
    ConfigurationError,
    EngineFailure,
    Overloaded,
    RevelatorError,
    StoreError,
)
from service.core.files import LineFile, open_lines, save_whole
from service.core.progress import shown_progress
from service.core.settings import Settings
from service.evaluation.rows import differences
from service.retrieval.base import EVERYTHING, SearchRequest
from service.retrieval.factory import Retrieval
from service.runtime import Runtime, open_runtime
from service.workshop.splits import Split, is_held_out
from service.workshop.synthesis.contract import (
    BadLines,
    Dropped,
    Finder,
    Item,
    OutputRow,
    Pipeline,
    Session,
    Spent,
    Teacher,
    read_lines,
)
from service.workshop.synthesis.options import PipelineName, SynthesisOptions
from service.workshop.synthesis.pipelines import pipeline_of

OUTAGE: Final = 5  # consecutive items with an unavailable teacher, after which the run ends
WRONG_SIDE: Final[dict[Split, str]] = {"train": "held out", "test": "not held out"}
SPARE: Final = 4  # factor of additional hits where held-out passages are removed


async def synthesize_file(
    settings: Settings,
    name: PipelineName,
    options: SynthesisOptions,
    console: Console | None = None,
) -> Report:
    """Run a pipeline or resume an interrupted run, then print and write the report.

    Raises InvalidRequest for an unusable input, ConfigurationError for an unusable teacher or
    templates, EngineFailure if the teacher is unavailable (finished items are kept), and
    StoreError.
    """
    screen = console or Console()
    pipeline = pipeline_of(name, options.templates)
    if options.query_teacher and pipeline.name != "autorag":
        raise ConfigurationError("--query-teacher: only `autorag` has queries of their own")
    if pipeline.searches and options.collection is None:
        raise ConfigurationError(f"{pipeline.name} searches: name a collection with --collection")
    items, bad = read_input(pipeline, options)
    async with open_runtime(settings) as runtime:
        find = await finder_of(runtime.retrieval, options.collection, options.side)
        teacher = teacher_of(runtime, "--teacher", options.teacher, options.model)
        others = {}
        if options.query_teacher:
            others["query"] = teacher_of(runtime, "--query-teacher", options.query_teacher)
        run = Synthesis(pipeline, teacher, find, options, others)
        report = await run.over(items, bad, screen)
    screen.print(table(report))
    files = [*files_of(options.output, pipeline.kinds).values(), options.report]
    screen.print(f"written: {', '.join(map(str, files))}", style="dim", soft_wrap=True)
    return report


def read_input(
    pipeline: Pipeline[Any], options: SynthesisOptions
) -> tuple[list[Item[Any]], BadLines]:
    """Return the items to process and the invalid lines."""
    lines, bad = read_lines(options.input)
    items = pipeline.read(lines, random.Random(options.seed), bad)
    return items[: options.limit], sorted(bad)


def teacher_of(runtime: Runtime, option: str, name: str, model: str | None = None) -> Teacher:
    """Return the teacher with an engine of the settings and the model's name for the rows."""
    engine = runtime.engines.get(name)
    if engine is None:
        known = ", ".join(sorted(runtime.engines))
        raise ConfigurationError(f"{option} {name}: the engines are {known}")
    settings = runtime.settings.engines[name]
    label = model or settings.model
    if label is None and settings.kind != "embedded":
        raise ConfigurationError(
            f"{option} {name}: every row names its teacher's model; give --model or "
            f"engines.{name}.model"
        )
    return Teacher(engine, label or "embedded", model)


async def finder_of(retrieval: Retrieval, collection: str | None, side: Split) -> Finder:
    """Return a function that searches a collection, without held-out passages if the rows are for
    training.

    Raises NotFound for an unknown collection.
    """
    name = await retrieval.collections.check_request(collection) if collection else ""
    training = side == "train"

    async def find(query: str, top_k: int, retriever_name: RetrieverName) -> tuple[Passage, ...]:
        most = top_k * SPARE if training else top_k
        request = SearchRequest(query, most, name, retriever_name, principals=EVERYTHING)
        found = (scored.passage for scored in (await retrieval.retriever.search(request)).passages)
        usable = [p for p in found if not (training and is_held_out(p.title))]
        return tuple(usable[:top_k])

    return find


def key_of(item: Item[Any]) -> str:
    """Return the key by which a journal recognises an item and its content."""
    return hashlib.sha256(repr((item.id, item.content)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Synthesis:
    """One run of a pipeline."""

    pipeline: Pipeline[Any]
    teacher: Teacher
    find: Finder
    options: SynthesisOptions
    others: Mapping[str, Teacher] = field(default_factory=dict)

    @property
    def header(self) -> dict[str, Any]:
        """The values that identify the run. They become the provenance of its rows."""
        pipeline, options = self.pipeline, self.options
        return {
            "pipeline": pipeline.name,
            "version": pipeline.version,
            "prompts": pipeline.prompts.digest,
            "templates": pipeline.templates or None,
            "teacher": self.teacher.label,
            "engine": self.teacher.engine.name,
            **{f"{stage}_teacher": other.label for stage, other in self.others.items()},
            "collection": options.collection,
            "seed": options.seed,
            "side": options.side,
            "date": options.date,
        }

    async def over(self, items: Sequence[Item[Any]], bad: BadLines, screen: Console) -> Report:
        """Process the items that the journal does not contain, then write the output and the
        report.

        Raises EngineFailure if the teacher is unavailable for several consecutive items; the run
        can then be resumed.
        """
        options, pipeline = self.options, self.pipeline
        admitted = [item for item in items if item.side == options.side]
        refused = Counter(f"bad line: {reason}" for _, reason in bad)
        refused[WRONG_SIDE[options.side]] += len(items) - len(admitted)
        with open_journal(options.journal, self.header) as journal:
            await self._process(admitted, journal, screen)
            records = [(item.id, journal.done[key_of(item)]) for item in admitted]
            rows, report = settle(pipeline, records, refused, bad, journal, options.seed)
            write_rows(files_of(options.output, pipeline.kinds), rows, report.run)
            text = json.dumps(report, default=vars, ensure_ascii=False, indent=2)
            save_whole(options.report, text + "\n")
        return report

    async def _process(self, items: Sequence[Item[Any]], journal: Journal, screen: Console) -> None:
        """Work on the items that the journal does not contain, each of which is written there, and
        show the progress."""
        todo = [item for item in items if not journal.has(key_of(item))]
        done, missed = len(items) - len(todo), 0

        async def worked(item: Item[Any]) -> RevelatorError | None:
            record, out = await self._worked(item)
            journal.append(record)
            return out

        with shown_progress(self.pipeline.name, "items", len(items), screen, begun=done) as show:
            async with closing(as_done(worked, todo, self.options.concurrency)) as results:
                async for out in results:
                    done, spent = done + 1, journal.spent
                    show(done, f"{spent.prompt_tokens:,} + {spent.completion_tokens:,} tokens")
                    missed = missed + 1 if out else 0
                    if out and missed >= OUTAGE:
                        raise EngineFailure(
                            f"the teacher is unavailable: {out.detail}; completed items are kept, "
                            "run the same command again to continue"
                        )

    async def _worked(self, item: Item[Any]) -> tuple[JournalEntry, RevelatorError | None]:
        """Return the result of an item, without rows of the other side of the split, and the
        failure if the teacher was unavailable."""
        seed = f"{self.options.seed}:{item.id}"
        session = Session(self.teacher, self.find, seed, self.others, self.pipeline.templates)
        key, spent, lost = key_of(item), session.spent, session.lost
        try:
            made = await self.pipeline.work(item, session)
        except Dropped as drop:
            return JournalEntry(key, dropped=drop.reason, spent=spent), None
        except (EngineFailure, Overloaded) as error:
            why = "the teacher was unavailable"
            return JournalEntry(key, dropped=why, again=True, spent=spent), error
        rows = tuple(row for row in made if row.side == self.options.side)
        lost[WRONG_SIDE[self.options.side]] += len(made) - len(rows)
        if rows:
            return JournalEntry(key, rows, lost=+lost, spent=spent), None
        why = (+lost).most_common(1)[0][0] if +lost else "no rows"
        return JournalEntry(key, dropped=why, spent=spent), None


# ---- the journal

FORMAT: Final = 3


@dataclass(frozen=True)
class JournalEntry:
    """The result of one item: its rows, or the reason for having none.

    `key` identifies the item and its content. `again` means that the teacher was unavailable, so
    the next run tries the item again.
    """

    key: str
    rows: tuple[OutputRow, ...] = ()
    dropped: str | None = None
    lost: Mapping[str, int] = field(default_factory=dict)
    again: bool = False
    spent: Spent = field(default_factory=Spent)

    def to_line(self) -> bytes:
        line = json.dumps(self, default=vars, ensure_ascii=False, separators=(",", ":"))
        return line.encode(errors="backslashreplace")


ENTRY: Final = TypeAdapter(JournalEntry)


class Journal:
    """The entries of one run. `header` identifies the run, and `date` is the day of its first
    start."""

    def __init__(
        self, file: LineFile, header: Mapping[str, Any], records: list[JournalEntry]
    ) -> None:
        self._file = file
        self.header = header
        self.done = {record.key: record for record in records}  # the later of two entries
        self.spent = Spent()
        for record in records:
            self.spent.add(record.spent)

    def has(self, key: str) -> bool:
        """Whether an item is finished."""
        return key in self.done and not self.done[key].again

    def append(self, record: JournalEntry) -> None:
        self._file.append(record.to_line())
        self.done[record.key] = record
        self.spent.add(record.spent)


@contextmanager
def open_journal(path: Path, header: Mapping[str, Any]) -> Iterator[Journal]:
    """Open, repair and read the journal of a run, or create it.

    Raises ConfigurationError if it belongs to another run (all of `header` except `date` is
    compared), and StoreError if it cannot be used or another process uses it.
    """
    with open_lines(path) as file:
        first, records = _read(file.content, path)
        if first is None:
            first = {"format": FORMAT, **header}
            file.append(json.dumps(first, ensure_ascii=False).encode())
        if found := differences(first, {"format": FORMAT, **header, "date": first.get("date")}):
            raise ConfigurationError(
                f"{path} is of another run: {'; '.join(found)}; use the same value, choose another "
                "--output, or delete the file"
            )
        yield Journal(file, first, records)


def _read(content: bytes, path: Path) -> tuple[Mapping[str, Any] | None, list[JournalEntry]]:
    """Return the header and the entries."""
    try:
        values = [json.loads(line) for line in content.splitlines()]
        return values[0] if values else None, [ENTRY.validate_python(value) for value in values[1:]]
    except ValueError:
        raise StoreError(
            f"{path}: is not a journal of a synthesis; move it away, or choose another --output"
        ) from None


# ---- the output and the report

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
    bad: BadLines,
    journal: Journal,
    seed: int,
) -> tuple[list[tuple[str, OutputRow]], Report]:
    """Select the rows to write, each with the id of its item, and report on all items.

    `records` are the results of the items, in order, by item id; `refused` counts the items and
    lines that were rejected before the teacher was called, among them the `bad` lines.
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
    return kept, Report(
        run=journal.header,
        input=len(records) + refused.total(),
        written=len(written),
        dropped=dict((+dropped).most_common()),
        rows=len(kept),
        lost=dict((+lost).most_common()),
        spent=journal.spent,
        bad_lines=bad[:SHOWN_BAD_LINES],
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
