"""Run a recipe from its settings to the checkpoint, and check the result of a smoke run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from service.core.errors import ConfigurationError
from service.workshop.recipes.checkpoint import (
    FINISHED,
    POINTS,
    describe_run,
    finished_record,
    open_run,
    read_checkpoint,
    write_curves,
    write_record,
)
from service.workshop.recipes.recipe import R, Recipe, S, Score, TrainingRun, load_recipe
from service.workshop.recipes.settings import parse_assignments, read_settings


def train_recipe(
    name: str,
    *,
    out: Path | None,
    resume: bool,
    preset: str | None,
    file: Path | None,
    flags: Mapping[str, Any],
    assignments: Sequence[str],
) -> None:
    """Train a recipe and print the result. Raises RevelatorError for errors that the caller can
    fix."""
    recipe = load_recipe(name)
    if out is None:
        raise ConfigurationError("--out FOLDER is missing; the checkpoint is written there")
    given = {key: value for key, value in flags.items() if value not in (None, [])}
    settings = read_settings(
        recipe.settings, recipe.presets, preset=preset, file=file,
        flags=given | parse_assignments(assignments),
    )  # fmt: skip
    run = TrainingRun(out, resume, main=is_main_process(), say=typer.echo)
    record = run_recipe(recipe, settings, run)
    leave_group()
    if run.main:
        typer.echo(f"{out}: {record['steps']} updates, loss {record['loss']['last']:.4f}")
        for line in shown_scores(record):
            typer.echo(line)


def leave_group() -> None:
    """End the connections to the processes that trained together, if there are any. A process that
    exits with open ones may be aborted by their threads."""
    if processes() > 1:
        import torch.distributed  # noqa: PLC0415

        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def processes() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Return whether this is the main process of `accelerate launch` or `torchrun`, or the only
    one."""
    return os.environ.get("RANK", "0") == "0"


def smoke_recipe(name: str, out: Path | None, *, resume: bool) -> int:
    """Run the recipe on its small data set in `out`, or in a temporary folder, and return the exit
    code."""
    if processes() > 1:
        raise ConfigurationError("--smoke runs in one process; start it without a launcher")
    if resume and out is None:
        raise ConfigurationError("--resume needs --out FOLDER, the folder of the run")
    recipe = load_recipe(name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or Path(temporary) / "run"
        problems = run_smoke(recipe, TrainingRun(folder, resume, say=typer.echo))
    for problem in problems:
        typer.secho(f"train {name} --smoke: {problem}", err=True, fg="red")
    return 1 if problems else 0


SMOKE_ROWS = 50


def run_recipe(recipe: Recipe[S, R], settings: S, run: TrainingRun) -> dict[str, Any]:
    """Read and check the data, train, score, write the checkpoint, and return its record
    (`checkpoint.py`).

    A finished run is not trained again. Raises ConfigurationError, InvalidRequest or StoreError
    before training if it cannot start.
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
    """Return one line per score of a checkpoint's record."""
    return [
        f"{name}: {score['value']:.3f}  (chance {score['chance']:.3f}, {score['rows']} rows)"
        for name, score in record["scores"].items()
    ] or ["no scores: no held-out rows were given"]


def run_smoke(recipe: Recipe[S, R], run: TrainingRun) -> list[str]:
    """Run a recipe on its small data set, print the result, and return the problems found."""
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
    """Return the problems of a smoke run.

    The loss must halve, and the first score must be above chance on 50 rows.
    """
    loss, scores = record["loss"], record["scores"]
    problems = []
    if not loss["last"] < loss["first"] / 2:
        problems.append("the final loss is not below half of the initial loss")
    if not scores:
        return [*problems, "the run produced no score"]
    name = next(iter(scores))
    score = Score(**scores[name])
    if score.rows != SMOKE_ROWS:
        problems.append(f"{name} was computed on {score.rows} rows instead of {SMOKE_ROWS}")
    if not score.above_chance:
        problems.append(f"{name} is not above chance")
    return problems
