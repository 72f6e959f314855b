"""`revelator synthesize PIPELINE` reads the input, calls the teacher, and writes rows and a
report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from service.core.concurrency import closing
from service.core.errors import ConfigurationError, StoreError
from service.core.progress import shown_progress
from service.core.settings import Settings
from service.runtime import Runtime, open_runtime
from service.workshop.facts.splits import Split
from service.workshop.synthesis.contract import InputItems, Item, Pipeline
from service.workshop.synthesis.driver import WRONG_SIDE, SynthesisRun, finder_of, key_of, work_off
from service.workshop.synthesis.inputs import EXCLUDED, is_excluded, read_lines, read_questions_of
from service.workshop.synthesis.journal import Journal, open_journal
from service.workshop.synthesis.pipelines import PipelineName, pipeline_of
from service.workshop.synthesis.report import (
    Account,
    Prices,
    Report,
    Result,
    files_of,
    report_of,
    settle,
    table,
    write_report,
    write_rows,
)
from service.workshop.synthesis.teacher import Spent, Teacher


@dataclass(frozen=True, slots=True)
class SynthesisOptions:
    """The options of the command line.

    `teacher` is the name of an engine, and `model` the name of a model of that engine.
    `exclude` are files of questions that must not occur in the rows. `date` defaults to today.
    """

    input: Path
    output: Path
    teacher: str = "default"
    model: str | None = None
    collection: str | None = None
    templates: str | None = None
    exclude: tuple[Path, ...] = ()
    side: Split = "train"
    limit: int | None = None
    concurrency: int = 8
    seed: int = 0
    prices: Prices = field(default_factory=Prices)
    date: str = ""

    @property
    def day(self) -> str:
        return self.date or datetime.now(UTC).date().isoformat()

    @property
    def journal(self) -> Path:
        return self.output.with_name(f"{self.output.name}.journal")

    @property
    def report(self) -> Path:
        return self.output.with_name(f"{self.output.stem}.report.json")


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
    report = await by_teacher(settings, pipeline, options, screen)
    screen.print(table(report))
    files = [*files_of(options.output, pipeline.kinds).values(), options.report]
    screen.print(f"written: {', '.join(map(str, files))}", style="dim", soft_wrap=True)
    return report


async def by_teacher(
    settings: Settings, pipeline: Pipeline[Any], options: SynthesisOptions, screen: Console
) -> Report:
    """Process the items of the input with an engine of the settings."""
    if pipeline.searches and options.collection is None:
        raise ConfigurationError(f"{pipeline.name} searches: name a collection with --collection")
    reading = read_input(pipeline, options)
    async with open_runtime(settings) as runtime:
        run = SynthesisRun(
            pipeline,
            teacher_of(runtime, options),
            await finder_of(runtime.retriever, options.collection, options.side),
            options.side,
            options.seed,
            options.concurrency,
        )
        return await run_all(run, reading, options, screen)


def read_input(pipeline: Pipeline[Any], options: SynthesisOptions) -> InputItems[Any]:
    """Return the items to process and the invalid lines."""
    lines, bad = read_lines(options.input)
    reading = pipeline.read(lines, Random(options.seed))
    return InputItems(reading.items[: options.limit], sorted(bad + reading.bad))


def teacher_of(runtime: Runtime, options: SynthesisOptions) -> Teacher:
    """Return the teacher with the engine of the options and the model's name for the rows."""
    engine = runtime.engines.get(options.teacher)
    if engine is None:
        known = ", ".join(sorted(runtime.engines))
        raise ConfigurationError(f"--teacher {options.teacher}: the engines are {known}")
    settings = runtime.settings.engines[options.teacher]
    label = options.model or settings.model
    if label is None and settings.kind != "embedded":
        raise ConfigurationError(
            f"--teacher {options.teacher}: every row names its teacher's model; give --model or "
            f"engines.{options.teacher}.model"
        )
    return Teacher(engine, label or "embedded", options.model)


async def run_all(
    run: SynthesisRun, reading: InputItems[Any], options: SynthesisOptions, screen: Console
) -> Report:
    """Process the unfinished items, then write the output and the report."""
    excluded = read_questions_of(options.exclude)
    own = [item for item in reading.items if item.source.side == run.side]
    items = [item for item in own if not is_excluded(item.source.question, excluded)]
    refused = Counter({WRONG_SIDE[run.side]: len(reading.items) - len(own)})
    refused[EXCLUDED] = len(own) - len(items)
    with _writing(options), open_journal(options.journal, header_of(run, options)) as journal:
        await _work_off(items, run, journal, options, screen)
        records = {item.id: journal.done[key_of(item)] for item in items}
        account = Account(items, records, refused, reading.bad, excluded=excluded)
        result = settle(account, run.pipeline, run.seed)
        report = report_of(result, account, journal.header, journal.spent, options.prices)
        _write(run.pipeline, result, report, options)
    return report


@contextmanager
def _writing(options: SynthesisOptions) -> Iterator[None]:
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        file = error.filename or options.output
        raise StoreError(f"{file}: cannot be written: {error.strerror}") from None


def _write(
    pipeline: Pipeline[Any], result: Result, report: Report, options: SynthesisOptions
) -> None:
    write_rows(files_of(options.output, pipeline.kinds), result.rows, report.run)
    write_report(options.report, report)


def header_of(run: SynthesisRun, options: SynthesisOptions) -> dict[str, Any]:
    """Return the values that identify a run. They become the provenance of its rows."""
    return {
        "pipeline": run.pipeline.name,
        "version": run.pipeline.version,
        "prompts": run.pipeline.prompts.digest,
        "templates": run.pipeline.templates or None,
        "teacher": run.teacher.label,
        "engine": run.teacher.engine.name,
        "collection": options.collection,
        "seed": run.seed,
        "side": run.side,
        "date": options.day,
    }


async def _work_off(
    items: list[Item[Any]],
    run: SynthesisRun,
    journal: Journal,
    options: SynthesisOptions,
    screen: Console,
) -> None:
    done = sum(not journal.done[k].again for k in map(key_of, items) if k in journal.done)
    with shown_progress(run.pipeline.name, "items", len(items), screen, begun=done) as show:
        async with closing(work_off(items, run, journal)) as finished:
            async for _ in finished:
                done += 1
                show(done, _shown(journal.spent, options.prices))


def _shown(spent: Spent, prices: Prices) -> str:
    tokens = f"{spent.prompt_tokens:,} + {spent.completion_tokens:,} tokens"
    cost = prices.of(spent)
    return f"{tokens}, cost {cost:,.2f}" if cost else tokens
