"""`revelator synthesize PIPELINE` reads the input, calls the teacher, and writes rows and a
report."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console

from service.core.concurrency import as_done, closing
from service.core.domain import Passage, RetrieverName
from service.core.errors import (
    ConfigurationError,
    EngineFailure,
    Overloaded,
    RevelatorError,
)
from service.core.files import save_whole
from service.core.progress import shown_progress
from service.core.settings import Settings
from service.retrieval.base import EVERYTHING, SearchRequest
from service.retrieval.factory import Retrieval
from service.runtime import Runtime, open_runtime
from service.workshop.splits import Split, is_held_out
from service.workshop.synthesis.contract import (
    BadLines,
    Dropped,
    Item,
    Pipeline,
    read_lines,
)
from service.workshop.synthesis.journal import Journal, JournalEntry, open_journal
from service.workshop.synthesis.options import PipelineName, SynthesisOptions
from service.workshop.synthesis.pipelines import pipeline_of
from service.workshop.synthesis.report import (
    SHOWN_BAD_LINES,
    Report,
    files_of,
    settle,
    table,
    write_rows,
)
from service.workshop.synthesis.teacher import Finder, Session, Teacher

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
            rows, counts = settle(pipeline, records, refused, options.seed)
            shown = bad[:SHOWN_BAD_LINES]
            report = Report(run=journal.header, **counts, spent=journal.spent, bad_lines=shown)
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
