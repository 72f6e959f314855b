"""`revelator tune dragin FILE` compares values of θ by EM and retrievals, and names the best one.

METHODS.md §6 #21 defines the best value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from service.answer.request import parse_request
from service.core.concurrency import closing
from service.core.settings import Settings
from service.evaluation.command import BAD_INPUT, DONE, SOME_FAILED, read_questions
from service.evaluation.datasets import GoldQuestion
from service.evaluation.report import mean
from service.evaluation.rows import Row
from service.evaluation.runner import Plan, evaluate
from service.retrieval.base import anyone
from service.runtime import Runtime, open_runtime

THRESHOLDS: Final = (0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6)


@dataclass(frozen=True, slots=True)
class Trial:
    """Means over the questions at one threshold. `failed` questions count as wrong."""

    threshold: float
    em: float
    f1: float
    retrievals: float
    failed: int


async def tune_dragin(
    settings: Settings,
    file: Path,
    fields: Mapping[str, Any],
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    limit: int | None = None,
    concurrency: int = 4,
) -> int:
    """Ask the questions of the file once per threshold, with the request fields `fields`.

    Returns the exit code: 0, 1 if questions failed, 2 if the file cannot be read.
    """
    screen = Console()
    questions = await read_questions(file, limit, screen)
    if questions is None:
        return BAD_INPUT
    trials: list[Trial] = []
    async with open_runtime(settings) as runtime:
        asked = {**fields, "loop": "dragin", "question": questions[0].question}
        request = await runtime.prepare(parse_request(asked), anyone)
        for threshold in thresholds:
            plan = Plan(request, concurrency)
            trial = await _try(runtime, questions, plan, threshold)
            trials.append(trial)
            line = f"θ {threshold:g}: EM {trial.em:.3f}, {trial.retrievals:.2f} retrievals"
            screen.print(line, style="dim", highlight=False)
    chosen = best(trials)
    screen.print(table(trials, chosen))
    profile = settings.dragin.profile
    screen.print(f"[dragin] profile = {profile!r}, threshold = {chosen.threshold:g}", markup=False)
    return SOME_FAILED if any(trial.failed for trial in trials) else DONE


async def _try(
    runtime: Runtime, questions: Sequence[GoldQuestion], plan: Plan, threshold: float
) -> Trial:
    dragin = runtime.settings.dragin.model_copy(update={"threshold": threshold})
    tried = replace(runtime, settings=runtime.settings.model_copy(update={"dragin": dragin}))
    async with closing(evaluate(questions, tried.ask, plan)) as results:
        return trial_of(threshold, [row async for row in results])


def trial_of(threshold: float, rows: Sequence[Row]) -> Trial:
    return Trial(
        threshold,
        em=mean(row.scores["em"] for row in rows) or 0.0,
        f1=mean(row.scores["f1"] for row in rows) or 0.0,
        retrievals=mean(row.retrievals for row in rows) or 0.0,
        failed=sum(row.error is not None for row in rows),
    )


def best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest EM. Ties are resolved by the fewest retrievals, then the
    highest threshold."""
    return max(trials, key=lambda trial: (trial.em, -trial.retrievals, trial.threshold))


def table(trials: Sequence[Trial], chosen: Trial) -> Table:
    shown = Table(box=None, header_style="bold")
    for name in ("θ", "EM", "F1", "retrievals", "failed", ""):
        shown.add_column(name, justify="right")
    for trial in trials:
        numbers = (f"{trial.em:.3f}", f"{trial.f1:.3f}", f"{trial.retrievals:.2f}")
        mark = "best" if trial is chosen else ""
        shown.add_row(f"{trial.threshold:g}", *numbers, str(trial.failed), mark)
    return shown
