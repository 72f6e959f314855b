"""A recipe from settings to checkpoint, and the smoke run that judges itself."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from service.workshop.recipes.checkpoint import (
    FINISHED,
    POINTS,
    describe_run,
    finished_record,
    open_run,
    read_checkpoint,
    write_record,
)
from service.workshop.recipes.curves import write_curves
from service.workshop.recipes.recipe import R, Recipe, Run, S, Score

SMOKE_ROWS = 50


def run_recipe(recipe: Recipe[S, R], settings: S, run: Run) -> dict[str, Any]:
    """Read, check, train, score, and write the checkpoint's folder; its record (`checkpoint.py`).

    A run that has ended is not trained again. Raises ConfigurationError, InvalidRequest or
    StoreError before any training where it cannot be.
    """
    data = recipe.read(settings)
    described = describe_run(recipe.name, settings, data)
    if run.main:
        open_run(run.folder, described, resume=run.resume)
        run.say(f"{recipe.name}: {len(data.train)} rows, {len(data.held_out)} held out")
    if run.resume and (run.folder / FINISHED).exists():
        return read_checkpoint(run.folder, recipe.name)
    outcome = recipe.fit(settings, data, run)
    record = finished_record(described, outcome)
    if run.main:
        write_curves(run.folder, outcome.losses)
        write_record(run.folder / FINISHED, record)
        shutil.rmtree(run.folder / POINTS, ignore_errors=True)
    return record


def shown_scores(record: Mapping[str, Any]) -> list[str]:
    """A line a score of a checkpoint's record."""
    return [
        f"{name}: {score['value']:.3f}  (chance {score['chance']:.3f}, {score['rows']} rows)"
        for name, score in record["scores"].items()
    ] or ["no scores: no held-out rows were given"]


def run_smoke(recipe: Recipe[S, R], run: Run) -> list[str]:
    """Run a recipe on its tiny data, show how it ended; what is wrong with that, or nothing."""
    tiny = run.folder.with_name(f"{run.folder.name}-data")
    tiny.mkdir(parents=True, exist_ok=True)
    record = run_recipe(recipe, recipe.smoke(tiny), run)
    run.say(
        f"loss: {record['loss']['first']:.3f} at the start, {record['loss']['last']:.3f} at the end"
    )
    for line in shown_scores(record):
        run.say(line)
    return judge(record)


def judge(record: Mapping[str, Any]) -> list[str]:
    """What a smoke run's record lacks: the loss halved, the first score above chance on 50 rows."""
    loss, scores = record["loss"], record["scores"]
    problems = []
    if not loss["last"] < loss["first"] / 2:
        problems.append("the loss did not fall below half its start")
    if not scores:
        return [*problems, "nothing was scored"]
    name = next(iter(scores))
    score = Score(**scores[name])
    if score.rows != SMOKE_ROWS:
        problems.append(f"{name} was taken on {score.rows} rows, not {SMOKE_ROWS}")
    if not score.above_chance:
        problems.append(f"{name} is not above chance")
    return problems
