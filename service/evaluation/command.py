"""`revelator evaluate DATASET…` asks every question by every method, writes rows, and prints a
table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from rich.console import Console

from service.answer.request import parse_request
from service.client import Client
from service.core.concurrency import closing
from service.core.errors import ConfigurationError, InvalidRequest, LoopUnavailable
from service.core.extras import lacking
from service.core.progress import shown_progress
from service.core.settings import Settings
from service.evaluation.datasets import DatasetError, GoldQuestion, load_dataset
from service.evaluation.document.writing import write_report
from service.evaluation.entries import PATIENCE_S, AtServer, Entry, InProcessEntry
from service.evaluation.identity import with_engine
from service.evaluation.llm_judge import Judge, open_judge
from service.evaluation.methods import Method, methods_of, named_methods
from service.evaluation.metrics import VERSIONS, ScoringOptions
from service.evaluation.poison import ATTACKS, ROBUSTNESS, planting, victims_of
from service.evaluation.provenance import process
from service.evaluation.report import compare, table, versions
from service.evaluation.rows import Row
from service.evaluation.run_folder import EvaluationRun, RunFolder, open_run
from service.evaluation.runner import Ask, Finish, Plan, Task, work_off
from service.evaluation.sources import Dataset, read_datasets
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


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """The options of the command line.

    `fields` are request fields that all methods share. `limit` is the number of questions taken
    from the start of each dataset. `yes_no` is the scoring option of that name; None applies the
    rule of each dataset's own script. `routes` are gold routes, written ROUTE or DATASET=ROUTE.
    Rows are written to the folder `out` and events to the folder `trace`, unless these are None.
    Questions are sent to the server at `url`, to the Ray cluster at `ray`, or answered in this
    process. `judge` names the engine that judges the answers. With `robustness`, every question is
    asked again under each attack of `poison.py`. `note` is printed in the report.
    """

    datasets: Sequence[str]
    methods: Sequence[str] = ("auto",)
    collections: Sequence[str] = ()
    formats: Sequence[str] = ()
    engine: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    concurrency: int = 4
    gold_routes: bool = False
    yes_no: bool | None = None
    retry_failed: bool = False
    out: Path | None = None
    trace: Path | None = None
    url: str | None = None
    routes: Sequence[str] = ()
    judge: str | None = None
    robustness: bool = False
    ray: str | None = None
    note: str | None = None


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
    methods, settings = methods_of(options.methods), with_engine(settings, options.engine)
    datasets = await read_or_tell(options, screen)
    if datasets is None:
        return BAD_INPUT
    async with (
        open_entry(settings, options.url, options.ray) as entry,
        open_judge(settings, options.judge, entry.engines) as judge,
    ):
        plans, skipped = await plans_of(entry, datasets, methods, options)
        for line in skipped:
            screen.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
        run = await run_of(entry, datasets, plans, options, judge)
        tasks = tasks_of(datasets, plans)
        rows = await ask_all(
            tasks, entry.ask, options, run, screen, judge.judged if judge else None
        )
        if options.robustness and len(rows) == len(tasks):
            await attack_all(entry, datasets, tasks, options, run, screen)
    show(rows, screen)
    if options.out:
        await report_on(options.out, options.trace, screen)
    return SOME_FAILED if any(row.error for row in rows) else DONE


async def report_on(folder: Path, traces: Path | None, screen: Console) -> None:
    """Write the report of all rows in the folder, including those of earlier commands."""
    for path in await anyio.to_thread.run_sync(write_report, folder, traces):
        screen.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)


async def read_or_tell(options: EvaluationOptions, screen: Console) -> list[Dataset] | None:
    """Return the datasets, or None after printing the problems."""
    try:
        return await anyio.to_thread.run_sync(
            read_datasets,
            options.datasets,
            options.collections,
            options.formats,
            options.limit,
            options.routes,
        )
    except DatasetError as error:
        report(error, screen)
        return None


def report(error: DatasetError, screen: Console) -> None:
    for problem in error.problems:
        screen.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)


async def read_questions(
    file: Path, limit: int | None, screen: Console
) -> list[GoldQuestion] | None:
    """Return the first `limit` questions of a file, or None after printing the problems."""
    try:
        questions = (await anyio.to_thread.run_sync(load_dataset, file))[:limit]
        if not questions:
            raise DatasetError([f"{file}: --limit {limit} leaves no questions"])
        return questions
    except DatasetError as error:
        report(error, screen)
        return None


async def plans_of(
    entry: Entry, datasets: Sequence[Dataset], methods: Sequence[Method], options: EvaluationOptions
) -> tuple[list[Plan], list[str]]:
    """Check every combination of method and dataset before any question is asked.

    Returns the plans, and a note for each method that only `all` includes and that this deployment
    cannot run. Raises the errors of `Entry.prepare`.
    """
    if options.gold_routes and not any(q.route for data in datasets for q in data.questions):
        raise InvalidRequest("--gold-routes: no question of the datasets has a gold `route`")
    plans: list[Plan] = []
    named = named_methods(options.methods)
    skipped: dict[str, str] = {}
    for dataset in datasets:
        for method in methods:
            fields = {
                **options.fields, **method.fields, "question": dataset.questions[0].question,
                "collection": dataset.collection, "route": method.route, "loop": method.loop,
            }  # fmt: skip
            try:
                request = await entry.prepare(parse_request(fields))
            except LoopUnavailable as error:
                if method.name in named:
                    raise
                skipped[method.name] = f"skipped: method {method.name}: {error.detail}"
                continue
            plan = Plan(
                request, options.concurrency, options.gold_routes and method.routes,
                scoring_of(dataset, options), dataset.name, method.name,
                options.trace,
            )  # fmt: skip
            plans.append(plan)
    return plans, list(skipped.values())


def scoring_of(dataset: Dataset, options: EvaluationOptions) -> ScoringOptions:
    own = dataset.format.yes_no if options.yes_no is None else options.yes_no
    return ScoringOptions(yes_no=own)


def tasks_of(datasets: Sequence[Dataset], plans: Sequence[Plan]) -> list[Task]:
    """Return every question with every method, ordered by question.

    An evaluation that ends early has thus compared the methods on the same questions.
    """
    return [
        Task(question, plan)
        for dataset in datasets
        for question in dataset.questions
        for plan in plans
        if plan.dataset == dataset.name
    ]


async def run_of(
    entry: Entry,
    datasets: Sequence[Dataset],
    plans: Sequence[Plan],
    options: EvaluationOptions,
    judge: Judge | None,
) -> EvaluationRun:
    """Return the description of this evaluation for `run.json`."""
    searched = {plan.dataset: plan.request.collection for plan in plans}
    names = dict.fromkeys(searched.values())
    collections = {name: await entry.collection(name) for name in names}
    common = {
        **entry.identity,
        "request": dict(options.fields),
        "gold_routes": options.gold_routes,
        "evaluators": VERSIONS,
        **({"judge": dict(judge.described)} if judge else {}),
        **({"note": options.note} if options.note else {}),
    }
    return EvaluationRun(
        common,
        {
            data.name: {
                **data.as_json(),
                "scoring": asdict(scoring_of(data, options)),
                "collection": collections[searched[data.name]],
            }
            for data in datasets
            if data.name in searched
        },
        {p.method: {"route": p.request.route, "loop": p.request.loop} for p in plans},
    )


async def ask_all(
    tasks: Sequence[Task],
    ask: Ask,
    options: EvaluationOptions,
    run: EvaluationRun,
    screen: Console,
    finish: Finish | None = None,
) -> list[Row]:
    """Ask the questions that have no row yet, and write each row when its question ends.

    Returns the rows of all tasks, or those collected before an engine or a store had failed too
    many times in a row.
    """
    wanted = {task.key for task in tasks}
    with ExitStack() as stack:
        folder = stack.enter_context(open_run(options.out, run)) if options.out else None
        rows = {row.key: row for row in kept_rows(folder, options) if row.key in wanted}
        if rows:
            told = f"{len(rows):,} of {len(tasks):,} questions already have a result"
            screen.print(told, highlight=False)
        todo = [task for task in tasks if task.key not in rows]
        if folder and todo:
            folder.note(await anyio.to_thread.run_sync(process))
        show = stack.enter_context(shown_progress("asking", "questions", len(todo), screen))
        done = failed = out = 0
        async with closing(work_off(todo, ask, options.concurrency, finish)) as results:
            async for row in results:
                rows[row.key] = row
                if folder:
                    folder.append(row)
                done, failed = done + 1, failed + bool(row.error)
                show(done, f"{failed:,} failed" if failed else "")
                out = out + 1 if row.interrupted else 0
                if out == MOST_OUT:
                    screen.print(STOPPED, style="red", highlight=False, soft_wrap=True)
                    break
    return [rows[task.key] for task in tasks if task.key in rows]


async def attack_all(
    entry: Entry,
    datasets: Sequence[Dataset],
    tasks: Sequence[Task],
    options: EvaluationOptions,
    run: EvaluationRun,
    screen: Console,
) -> None:
    """Ask every question again under each attack.

    The rows are written to a separate folder, under the dataset names `NAME+ATTACK`. The function
    returns early after too many consecutive failures because of an outage.
    """
    victims = [victim for data in datasets for victim in victims_of(data.questions)]
    own = replace(options, out=(options.out or Path()) / ROBUSTNESS)
    for attack in ATTACKS:
        screen.print(f"poisoned passages: {attack.name}", highlight=False)
        again = [
            Task(task.question, replace(plan, dataset=attack.of(plan.dataset), traces=None))
            for task in tasks
            for plan in [task.plan]
        ]
        known = {attack.of(name): dataset for name, dataset in run.datasets.items()}
        ask = entry.altered(planting(attack, victims))
        rows = await ask_all(again, ask, own, replace(run, datasets=known), screen)
        if len(rows) < len(again):
            return


def kept_rows(folder: RunFolder | None, options: EvaluationOptions) -> list[Row]:
    """Return the stored rows whose questions are not asked again.

    Questions that failed because of an outage are asked again. With `retry_failed`, so are all
    questions that failed, or that the judge failed on.
    """
    if folder is None:
        return []
    if options.retry_failed:
        return [row for row in folder.rows if not (row.error or row.judge_error)]
    return [row for row in folder.rows if not row.interrupted]


def show(rows: Sequence[Row], screen: Console) -> None:
    """Print a table for each dataset, and the first failures."""
    for name, summaries in compare(rows).items():
        screen.print(table(summaries, f"{name}: means per question" if name else "Means"))
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
    on_ray = _ray_entry() if ray is not None else None
    async with open_runtime(settings) as runtime:
        if on_ray is None:
            yield InProcessEntry(runtime)
        else:
            with on_ray(ray, runtime) as entry:
                yield entry


def _ray_entry() -> Callable[..., AbstractContextManager[Entry]]:
    """Import the Ray entry. Raises ConfigurationError if Ray is not installed."""
    try:
        from service.evaluation.ray_entry import on_ray  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(lacking("--ray", error, "ray")) from error
    return on_ray
