"""Run a recipe from its settings to the checkpoint, and check the result of a smoke run.

A run writes `run.json` at its start. The folder of a finished run contains the weights,
`checkpoint.json` (settings, hash of the data, versions and scores), and the loss as `losses.csv`.
Files are written atomically.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import Any

import typer

from service import __version__
from service.core.errors import ConfigurationError, StoreError
from service.core.files import write_whole
from service.workshop.recipes.recipe import (
    LossPoint,
    R,
    Recipe,
    RecipeSettings,
    S,
    Score,
    TrainingData,
    TrainingResult,
    TrainingRun,
    changed_settings,
    load_recipe,
    parse_assignments,
    read_settings,
)

FORMAT = 1
RUN, FINISHED = "run.json", "checkpoint.json"
POINTS = "points"  # folder of the saved points to resume from, deleted at the end of the run
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "trl", "peft")
SMOKE_ROWS = 50


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


def run_recipe(recipe: Recipe[S, R], settings: S, run: TrainingRun) -> dict[str, Any]:
    """Read and check the data, train, score, write the checkpoint, and return its record
    (`finished_record`).

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
        write_losses(run.folder, outcome.losses)
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


# ---- records


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON."""
    write_whole(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def describe_run(recipe: str, settings: RecipeSettings, data: TrainingData[Any]) -> dict[str, Any]:
    """Return the JSON values that identify a run."""
    return {
        "format": FORMAT,
        "recipe": recipe,
        "settings": settings.model_dump(mode="json"),
        "data": {
            "sha256": data.sha256, "rows": len(data.train), "held_out_rows": len(data.held_out)
        },
        "versions": installed_versions(),
    }  # fmt: skip


def installed_versions() -> dict[str, str]:
    """Return the versions of the installed packages that the weights depend on."""
    found = {"revelator": __version__, "python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def open_run(folder: Path, run: Mapping[str, Any], *, resume: bool) -> None:
    """Start a run in `folder`, or check that the run there is the same.

    Raises ConfigurationError if the folder contains a run and `resume` is false, if it contains
    none and `resume` is true, or if the settings or the data differ.
    """
    begun = folder / RUN
    if not resume:
        if begun.exists():
            raise ConfigurationError(
                f"{folder} already holds a run; continue it with --resume, or choose another --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_record(begun, run)
        return
    if not begun.exists():
        raise ConfigurationError(f"{folder} holds no run to resume; omit --resume")
    _refuse_other(folder, _read_record(begun), run)


def _refuse_other(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if before["recipe"] != now["recipe"]:
        raise ConfigurationError(f"{folder} is a run of {before['recipe']}, not of {now['recipe']}")
    changed = changed_settings(before["settings"], now["settings"])
    if changed:
        raise ConfigurationError(
            f"{folder} was started with other settings: {'; '.join(changed)}; resume with those it "
            "was started with, or choose another --out"
        )
    if before["data"]["sha256"] != now["data"]["sha256"]:
        raise ConfigurationError(
            f"{folder} was started with other data: {before['data']['rows']} rows then, "
            f"{now['data']['rows']} now, or of other content; choose another --out"
        )


def finished_record(run: Mapping[str, Any], outcome: TrainingResult) -> dict[str, Any]:
    """Return the content of `checkpoint.json`. `loss` contains the means of the first and the last
    tenth of the losses."""
    first, last = _ends([point.loss for point in outcome.losses])
    return dict(run) | {
        "steps": outcome.losses[-1].step,
        "loss": {"first": first, "last": last},
        "scores": {name: asdict(score) for name, score in outcome.scores.items()},
    }


def _ends(losses: Sequence[float]) -> tuple[float, float]:
    size = max(1, len(losses) // 10)
    return fmean(losses[:size]), fmean(losses[-size:])


def read_checkpoint(folder: Path, recipe: str) -> dict[str, Any]:
    """Return the record of a finished run.

    Raises StoreError if there is none, or if it belongs to another recipe or version.
    """
    path = folder / FINISHED
    if not path.exists():
        unfinished = (
            " (the run is unfinished; continue it with --resume)" if (folder / RUN).exists() else ""
        )
        raise StoreError(f"{folder} contains no finished checkpoint{unfinished}")
    record = _read_record(path)
    if record["recipe"] != recipe:
        raise StoreError(f"{folder} is a checkpoint of {record['recipe']}, not of {recipe}")
    return record


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        found = record["format"]
    except (ValueError, TypeError, KeyError):
        raise StoreError(f"{path} is damaged: train again into another folder") from None
    if found != FORMAT:
        writer = record.get("versions", {}).get("revelator", "unknown")
        raise StoreError(
            f"{path} has format {found} and this version reads {FORMAT}: use the Revelator that "
            f"wrote it ({writer}) or train again"
        )
    return dict(record)


def write_losses(folder: Path, losses: Sequence[LossPoint]) -> None:
    """Write `losses.csv`, with a header line. An unknown learning rate is left empty."""
    rows = (
        f"{p.step},{p.loss:.6g},{'' if p.learning_rate is None else f'{p.learning_rate:.6g}'}"
        for p in losses
    )
    content = "\n".join(["step,loss,learning_rate", *rows]) + "\n"
    write_whole(folder / "losses.csv", content)
