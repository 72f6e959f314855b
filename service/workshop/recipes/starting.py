"""What `revelator train` does: settings together, then a run or the recipe's smoke run."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from service.core.errors import ConfigurationError
from service.workshop.recipes.recipe import Run
from service.workshop.recipes.registry import load_recipe
from service.workshop.recipes.running import run_recipe, run_smoke, shown_scores
from service.workshop.recipes.settings import parse_assignments, read_settings

# Training on a CPU allocates and frees the same large blocks at every update. By default each goes
# back to the system, and a third of the time is spent on zeroing pages that come again.
ALLOCATOR: Final = {
    "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_ARENA_MAX": "1",
}  # fmt: skip


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
    """Train and show what came of it. Raises RevelatorError for what the caller can mend."""
    recipe = load_recipe(name)
    if out is None:
        raise ConfigurationError("--out FOLDER: where the checkpoint goes")
    given = {key: value for key, value in flags.items() if value not in (None, [])}
    settings = read_settings(
        recipe.settings, recipe.presets, preset=preset, file=file,
        flags=given | parse_assignments(assignments),
    )  # fmt: skip
    if getattr(settings, "lean", False):
        keep_memory()
    run = Run(out, resume, main=is_main_process(), say=typer.echo)
    record = run_recipe(recipe, settings, run)
    if run.main:
        typer.echo(f"{out}: {record['steps']} updates, loss {record['loss']['last']:.4f}")
        for line in shown_scores(record):
            typer.echo(line)


def keep_memory() -> None:
    """Begin this process again with glibc's allocator set to `ALLOCATOR`, unless it is set."""
    if sys.platform == "linux" and not ALLOCATOR.keys() <= os.environ.keys():
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **ALLOCATOR})


def processes() -> int:
    """How many train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """False in all but one of the processes of `accelerate launch` or `torchrun`."""
    return os.environ.get("RANK", "0") == "0"


def smoke_recipe(name: str, out: Path | None, *, resume: bool) -> int:
    """Run the recipe on its tiny data in `out`, or a folder that is removed; the exit code."""
    if processes() > 1:
        raise ConfigurationError("--smoke runs in one process: leave the launcher out")
    if resume and out is None:
        raise ConfigurationError("--resume needs --out FOLDER, where the run was begun")
    recipe = load_recipe(name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or Path(temporary) / "run"
        problems = run_smoke(recipe, Run(folder, resume, say=typer.echo))
    for problem in problems:
        typer.secho(f"train {name} --smoke: {problem}", err=True, fg="red")
    return 1 if problems else 0
