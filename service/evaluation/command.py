"""`revelator evaluate FILE`: read, ask, write the rows, show the table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from service.answer.request import parse_request
from service.core.concurrency import closing
from service.core.settings import Settings
from service.evaluation.datasets import DatasetError, GoldQuestion, load_dataset
from service.evaluation.report import summarise, table, versions
from service.evaluation.runner import Ask, Plan, Row, evaluate
from service.runtime import open_runtime

DONE: Final = 0
SOME_FAILED: Final = 1
BAD_INPUT: Final = 2
SHOWN_FAILURES: Final = 5


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """`out` is the JSONL file for the rows. `limit` is the number of questions to ask, from the
    first."""

    plan: Plan
    out: Path | None = None
    limit: int | None = None


async def evaluate_file(
    settings: Settings,
    file: Path,
    fields: Mapping[str, Any],
    *,
    limit: int | None = None,
    concurrency: int = 4,
    out: Path | None = None,
) -> int:
    """Evaluate in this process; `fields` are those of a request. Returns the exit code
    of `run_evaluate`. An invalid file is reported before anything is opened."""
    screen = Console()
    questions = await read_questions(file, limit, screen)
    if questions is None:
        return BAD_INPUT
    async with open_runtime(settings) as runtime:
        asked = parse_request({**fields, "question": questions[0].question})
        request = await runtime.prepare(asked)
        options = EvaluateOptions(Plan(request, concurrency), out, limit)
        return await _evaluate(questions, runtime.ask, options, screen)


async def run_evaluate(file: Path, ask: Ask, options: EvaluateOptions, console: Console) -> int:
    """Evaluate a dataset file and return the exit code.

    0: every question was answered or declined. 1: some questions failed; they are in the rows and
    in the means. 2: the file cannot be evaluated (nothing was asked), or the rows cannot be
    written.
    """
    questions = await read_questions(file, options.limit, console)
    return BAD_INPUT if questions is None else await _evaluate(questions, ask, options, console)


async def read_questions(
    file: Path, limit: int | None, screen: Console
) -> list[GoldQuestion] | None:
    try:
        questions = (await anyio.to_thread.run_sync(load_dataset, file))[:limit]
        if not questions:
            raise DatasetError([f"{file}: --limit {limit} leaves no questions"])
        return questions
    except DatasetError as error:
        for problem in error.problems:
            screen.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
        return None


async def _evaluate(
    questions: Sequence[GoldQuestion], ask: Ask, how: EvaluateOptions, screen: Console
) -> int:
    try:
        rows = await _ask_all(questions, ask, how, screen)
    except OSError as error:
        screen.print(f"{how.out} cannot be written: {error.strerror}", style="red", markup=False)
        return BAD_INPUT
    screen.print(table(summarise(rows)))
    screen.print(versions(), style="dim", highlight=False, soft_wrap=True)
    failed = [row for row in rows if row.error]
    for row in failed[:SHOWN_FAILURES]:
        screen.print(f"failed: {row.id}: {row.error}", style="red", markup=False, soft_wrap=True)
    return SOME_FAILED if failed else DONE


async def _ask_all(
    questions: Sequence[GoldQuestion], ask: Ask, how: EvaluateOptions, screen: Console
) -> list[Row]:
    """Ask and write each row as soon as those before it are there."""
    rows: list[Row] = []
    columns = (
        TextColumn("asking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        out = (
            await stack.enter_async_context(await anyio.open_file(how.out, "wb"))
            if how.out
            else None
        )
        progress = Progress(*columns, console=screen, disable=not screen.is_terminal)
        bar = stack.enter_context(progress).add_task("", total=len(questions))
        results = await stack.enter_async_context(closing(evaluate(questions, ask, how.plan)))
        async for row in results:
            rows.append(row)
            progress.advance(bar)
            if out:
                line = json.dumps(row.as_json(), ensure_ascii=False)
                await out.write(line.encode(errors="backslashreplace") + b"\n")
                await out.flush()
    return rows
