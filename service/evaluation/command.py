"""`revelator evaluate DATASET…` asks every question by every method, writes rows, and prints a
table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from rich.console import Console

from service.answer.request import parse_request
from service.client import Client
from service.core.concurrency import closing
from service.core.errors import InvalidRequest, LoopUnavailable
from service.core.extras import importing, missing_packages
from service.core.progress import shown_progress
from service.core.settings import Settings
from service.evaluation.datasets import Dataset, DatasetError, read_datasets
from service.evaluation.entries import PATIENCE_S, AtServer, Entry, InProcessEntry, with_engine
from service.evaluation.llm_judge import Judge, open_judge
from service.evaluation.means import compare, table, versions
from service.evaluation.methods import Method, methods_of, named_methods
from service.evaluation.metrics import VERSIONS
from service.evaluation.options import EvaluationOptions
from service.evaluation.papers import Bundle, load_bundle
from service.evaluation.poison import (
    ATTACKS,
    ROBUSTNESS,
    Attack,
    PoisonedRetriever,
    Victim,
    victims_of,
)
from service.evaluation.rows import Row, RunFolder, open_run, process
from service.evaluation.runner import Finish, Task, work_off
from service.runtime import open_runtime

DONE: Final = 0
SOME_FAILED: Final = 1
BAD_INPUT: Final = 2
SHOWN_FAILURES: Final = 5
MOST_OUT: Final = 20  # consecutive failures because of an outage, after which the evaluation ends
STOPPED: Final = (
    f"stopped: {MOST_OUT} questions in a row failed because an engine or a store was unavailable. "
    "Run the same command again with --out to continue; the failed questions are asked again."
)


async def evaluate_datasets(
    settings: Settings, options: EvaluationOptions, console: Console | None = None
) -> int:
    """Evaluate in this process, at the server `url` or on a Ray cluster, and return the exit code.

    The code is 0 if every question was answered or abstained from; 1 if some questions failed,
    which are in the rows and in the means; and 2 if a dataset cannot be read, in which case nothing
    is asked. Raises RevelatorError if the methods, the settings or the folder do not allow the
    evaluation.
    """
    screen = console or Console()
    refuse(options)
    if options.bundle:
        bundle = load_bundle(options.bundle)
        settings, options = bundle.applied(settings), replace(options, methods=[bundle.method])
    methods, settings = methods_of(options.methods), with_engine(settings, options.engine)
    try:
        datasets = await anyio.to_thread.run_sync(
            read_datasets, options.datasets, options.collections, options.formats, options.limit,
            options.routes,
        )  # fmt: skip
    except DatasetError as error:
        for problem in error.problems:
            screen.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
        return BAD_INPUT
    async with (
        open_entry(settings, options.url, options.ray) as entry,
        open_judge(settings, options.judge, entry.engines) as judge,
    ):
        evaluation = Evaluation(entry, datasets, options, screen, judge)
        await evaluation.plan(methods)
        rows = await evaluation.ask()
    show(rows, screen)
    if options.out:
        await report_on(options.out, options.trace, screen)
    return SOME_FAILED if any(row.error for row in rows) else DONE


def refuse(options: EvaluationOptions) -> None:
    """Raise InvalidRequest for options that cannot be combined."""
    if options.url and options.engine:
        raise InvalidRequest(
            "--engine cannot be combined with --url, because the server uses its own engines; omit "
            "one of them"
        )
    if options.ray and options.url:
        raise InvalidRequest(
            "--ray cannot be combined with --url, because Ray answers the questions of this "
            "process; omit one of them"
        )
    if options.robustness and (options.url or not options.out):
        raise InvalidRequest(
            "--robustness needs --out, and cannot be combined with --url, because it changes "
            "search results in this process"
        )
    if options.bundle and (options.url or options.methods != ["auto"]):
        raise InvalidRequest("--bundle sets the method and the settings; omit --methods and --url")


async def report_on(folder: Path, traces: Path | None, screen: Console) -> None:
    """Write the report of all rows in the folder, including those of earlier commands, or tell
    which packages that needs."""
    if problem := missing_packages("the report", ["scipy", "markdown_it"], "evaluate"):
        screen.print(problem, style="yellow", markup=False, highlight=False, soft_wrap=True)
        return
    from service.evaluation.report import write_report  # noqa: PLC0415

    for path in await anyio.to_thread.run_sync(write_report, folder, traces):
        screen.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: the questions of `datasets` by every planned method, asked through
    `entry`."""

    entry: Entry
    datasets: Sequence[Dataset]
    options: EvaluationOptions
    screen: Console
    judge: Judge | None
    tasks: list[Task] = field(default_factory=list, init=False)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)

    @property
    def bundle(self) -> Bundle | None:
        return load_bundle(self.options.bundle) if self.options.bundle else None

    async def plan(self, methods: Sequence[Method]) -> None:
        """Check every combination of method and dataset before any question is asked.

        Prints a note for each method that only `all` includes and that this deployment cannot run.
        Raises as `Entry.prepare` does: for example InvalidRequest or NotFound.
        """
        options = self.options
        if options.gold_routes and not any(q.route for d in self.datasets for q in d.questions):
            raise InvalidRequest("--gold-routes: no question of the datasets has a gold `route`")
        named = named_methods(options.methods)
        skipped: dict[str, str] = {}
        for dataset in self.datasets:
            for method in methods:
                fields = {
                    **self._fields(dataset), **method.fields,
                    "question": dataset.questions[0].question,
                    "collection": dataset.collection, "route": method.route, "loop": method.loop,
                    "last_resort": method.last_resort,
                }  # fmt: skip
                try:
                    request = await self.entry.prepare(parse_request(fields))
                except LoopUnavailable as error:
                    if method.name in named:
                        raise
                    skipped[method.name] = f"skipped: method {method.name}: {error.detail}"
                    continue
                if self.bundle:
                    request = request.model_copy(update={"conditions": self.bundle.conditions})
                self.methods[method.name] = request.model_dump(
                    include={"route", "loop", "last_resort"}
                )
                self.tasks.extend(
                    Task(
                        question, request, options.gold_routes and method.route == "auto",
                        self._yes_no(dataset), dataset.name, method.name, options.trace,
                    )
                    for question in dataset.questions
                )  # fmt: skip
        for line in skipped.values():
            self.screen.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)

    def _fields(self, dataset: Dataset) -> dict[str, Any]:
        """Return the request fields that all methods share."""
        fields = self.bundle.fields(dataset.name) if self.bundle else {}
        return {**self.options.fields, **fields}

    def _yes_no(self, dataset: Dataset) -> bool:
        chosen = self.options.yes_no
        return dataset.format.yes_no if chosen is None else chosen

    async def ask(self) -> list[Row]:
        """Ask every question by every method and, with `--robustness`, again under each attack.

        Returns the rows without those under attack. The tasks are ordered by question, so an
        evaluation that ends early has compared the methods on the same questions.
        """
        places = {
            (data.name, question.id): (number, place)
            for number, data in enumerate(self.datasets)
            for place, question in enumerate(data.questions)
        }
        tasks = sorted(self.tasks, key=lambda task: places[task.dataset, task.question.id])
        run = await self._description()
        finish = self.judge.judged if self.judge else None
        rows = await self._ask_all(tasks, self.options.out, run, finish)
        if not self.options.robustness or len(rows) < len(tasks):
            return rows
        out = (self.options.out or Path()) / ROBUSTNESS
        victims = {
            (data.name, victim.question.id): victim
            for data in self.datasets
            for victim in victims_of(data.questions)
        }
        for attack in ATTACKS:
            self.screen.print(f"poisoned passages: {attack.name}", highlight=False)
            again = [
                attacked(task, attack, victims[task.dataset, task.question.id]) for task in tasks
            ]
            datasets = {attack.of(name): dataset for name, dataset in run["datasets"].items()}
            found = await self._ask_all(again, out, {**run, "datasets": datasets})
            if len(found) < len(again):
                break
        return rows

    async def _description(self) -> dict[str, dict[str, Any]]:
        """Return the description of this evaluation for `run.json`."""
        searched = {task.dataset: task.method_request.collection for task in self.tasks}
        names = dict.fromkeys(searched.values())
        collections = {name: await self.entry.collection(name) for name in names}
        options, bundle = self.options, self.bundle
        fixed = (
            {"bundle": bundle.name, "conditions": bundle.conditions.model_dump()} if bundle else {}
        )
        return {
            "common": {
                **self.entry.identity,
                "request": dict(options.fields),
                "gold_routes": options.gold_routes,
                "evaluators": VERSIONS,
                **({"judge": dict(self.judge.described)} if self.judge else {}),
                **({"note": options.note} if options.note else {}),
                **fixed,
            },
            "datasets": {
                data.name: {
                    **data.as_json(),
                    **({"request": self._fields(data)} if bundle else {}),
                    "scoring": {"yes_no": self._yes_no(data)},
                    "collection": collections[searched[data.name]],
                }
                for data in self.datasets
                if data.name in searched
            },
            "methods": self.methods,
        }

    async def _ask_all(
        self,
        tasks: Sequence[Task],
        out: Path | None,
        run: Mapping[str, Mapping[str, Any]],
        finish: Finish | None = None,
    ) -> list[Row]:
        """Ask the questions that have no row in the folder `out` yet, and write each row there when
        its question ends.

        Returns the rows of all tasks, or those collected before an engine or a store had failed too
        many times in a row.
        """
        wanted = {task.key for task in tasks}
        with ExitStack() as stack:
            folder = stack.enter_context(open_run(out, run)) if out else None
            rows = {row.key: row for row in self._kept(folder) if row.key in wanted}
            if rows:
                told = f"{len(rows):,} of {len(tasks):,} questions already have a result"
                self.screen.print(told, highlight=False)
            todo = [task for task in tasks if task.key not in rows]
            if folder and todo:
                folder.note(await anyio.to_thread.run_sync(process))
            show = stack.enter_context(
                shown_progress("asking", "questions", len(todo), self.screen)
            )
            done = failed = away = 0
            working = work_off(todo, self.entry.ask, self.options.concurrency, finish)
            async with closing(working) as results:
                async for row in results:
                    rows[row.key] = row
                    if folder:
                        folder.append(row)
                    done, failed = done + 1, failed + bool(row.error)
                    show(done, f"{failed:,} failed" if failed else "")
                    away = away + 1 if row.interrupted else 0
                    if away == MOST_OUT:
                        self.screen.print(STOPPED, style="red", highlight=False, soft_wrap=True)
                        break
        return [rows[task.key] for task in tasks if task.key in rows]

    def _kept(self, folder: RunFolder | None) -> list[Row]:
        """Return the stored rows whose questions are not asked again.

        Questions that failed because of an outage are asked again. With `retry_failed`, so are all
        questions that failed, or that the judge failed on.
        """
        if folder is None:
            return []
        if self.options.retry_failed:
            return [row for row in folder.rows if not (row.error or row.judge_error)]
        return [row for row in folder.rows if not row.interrupted]


def attacked(task: Task, attack: Attack, victim: Victim) -> Task:
    """Return the task with the attack's passages among the results of each search."""
    alter = partial(PoisonedRetriever, attack=attack, victim=victim)
    return replace(task, dataset=attack.of(task.dataset), traces=None, alter=alter)


def show(rows: Sequence[Row], screen: Console) -> None:
    """Print a table for each dataset, and the first failures."""
    for name, groups in compare(rows).items():
        screen.print(table(groups, f"{name}: means per question" if name else "Means"))
    screen.print(versions(), style="dim", highlight=False, soft_wrap=True)
    for row in [row for row in rows if row.error][:SHOWN_FAILURES]:
        line = f"failed: {row.dataset}: {row.method}: {row.id}: {row.error}"
        screen.print(line, style="red", markup=False, soft_wrap=True)
    unjudged = [row for row in rows if row.judge_error]
    if unjudged:
        line = f"not judged: {len(unjudged):,} answers, the first: {unjudged[0].judge_error}"
        screen.print(line, style="red", markup=False, soft_wrap=True)


@asynccontextmanager
async def open_entry(
    settings: Settings, url: str | None, ray: str | None = None
) -> AsyncIterator[Entry]:
    """Open the server at `url`, the Ray cluster at `ray`, or a runtime in this process."""
    if url is not None:
        async with Client(url, key=settings.own_key, patience_s=PATIENCE_S) as client:
            yield AtServer(client, settings)
        return
    if ray is None:
        async with open_runtime(settings) as runtime:
            yield InProcessEntry(runtime)
        return
    with importing("--ray", "ray"):
        from service.evaluation.ray_entry import on_ray  # noqa: PLC0415
    async with open_runtime(settings) as runtime:
        with on_ray(ray, runtime) as entry:
            yield entry
