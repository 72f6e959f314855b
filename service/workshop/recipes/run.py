"""`revelator train RECIPE`: the settings of a run, its folder and its record.

`transformers.Trainer` (or trl's) trains, so its arguments are set by their own names beside the
settings of the recipe: `--set max_steps=100`. It finds the devices with accelerate: one, or several
with `accelerate launch` or `torchrun` around `revelator train` (`python -m service train`).

A run writes `run.json` at its start, and the states that it can be resumed from below `points/`.
The folder of a finished run contains the weights and `checkpoint.json` (settings, hash of the data,
versions, losses and scores). Files are written atomically.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

import typer
from pydantic import ValidationError

from service import __version__
from service.core.errors import ConfigurationError, StoreError
from service.core.extras import importing, missing_packages
from service.core.files import open_lines, save_whole
from service.core.settings.base import Section
from service.core.validation import explain
from service.evaluation.rows import differences
from service.workshop.rows import AnyRow, read_rows_of

S = TypeVar("S", bound=Section)
FORMAT: Final = 2
RUN, FINISHED = "run.json", "checkpoint.json"
POINTS: Final = "points"  # folder of the saved states, deleted at the end of the run
LOCK: Final = "lock"  # there; open while a process trains
PACKAGES: Final = ("torch", "transformers", "tokenizers", "accelerate", "trl", "peft")
# Arguments of the Trainer in every recipe, which settings may replace.
ARGUMENTS: Final[Mapping[str, Any]] = {
    "save_steps": 200, "save_total_limit": 2, "logging_steps": 10, "logging_first_step": True,
    "logging_nan_inf_filter": False, "report_to": "none", "remove_unused_columns": False,
}  # fmt: skip
WITHOUT_EFFECT: Final = frozenset({"save_steps", "save_total_limit", "logging_steps"})


class Score(NamedTuple):
    """A score of `rows` held-out rows. `chance` is the expected one of guessing without reading
    the rows."""

    value: float
    chance: float
    rows: int


@dataclass(frozen=True)
class TrainingRun:
    """The folder of a run, its data, and the arguments of its trainer."""

    folder: Path
    data: Sequence[Path]
    held_out: Sequence[Path]
    arguments: Any

    def rows(self, kind: type[AnyRow]) -> tuple[list[AnyRow], list[AnyRow]]:
        """Return the rows for training and those held out.

        Raises InvalidRequest, with file and line, for an invalid row or one that may not be used
        this way, and ConfigurationError if there are none to train on.
        """
        train = [row for path in self.data for row in read_rows_of(kind, path, "train")]
        if not train:
            raise ConfigurationError(f"data: no rows in {', '.join(map(str, self.data))}")
        return train, [row for path in self.held_out for row in read_rows_of(kind, path, "test")]

    def fit(self, trainer: Any) -> bool:
        """Train to the end, from the last saved state if there is one. Return whether this process
        is the one that writes the weights."""
        trainer.train(resume_from_checkpoint=last_point(self.folder / POINTS))
        return bool(trainer.is_world_process_zero())


@dataclass(frozen=True)
class Recipe(Generic[S]):
    """How a model is trained.

    `train` reads the data, trains, writes the weights to the run's folder, and returns the trainer
    and the scores by name, which are those of the main process and empty without held-out rows. It
    raises InvalidRequest for an invalid row or one that leaks. `fixed` are arguments of the trainer
    that no setting replaces.
    """

    settings: type[S]
    presets: Mapping[str, Mapping[str, Any]]
    train: Callable[[S, TrainingRun], tuple[Any, Mapping[str, Score]]]
    arguments: str = "transformers:TrainingArguments"
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


RECIPES: Final = {  # as module:name, imported on use
    "sft": "service.workshop.recipes.sft:RECIPE",
    "router": "service.workshop.recipes.router:RECIPE",
    "extractor": "service.workshop.recipes.extractor:RECIPE",
    "labeler": "service.workshop.recipes.labels:LABELER",
    "filter": "service.workshop.recipes.labels:FILTER",
}


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def load_recipe(name: str) -> Recipe[Any]:
    """Import a recipe. Raises ConfigurationError if its libraries are not installed."""
    what = f"train {name}"
    # The Trainer of transformers imports accelerate only when training starts.
    if problem := missing_packages(what, ["accelerate"], "train"):
        raise ConfigurationError(problem)
    with importing(what, "train"):
        recipe: Recipe[Any] = _imported(RECIPES[name])
    return recipe


def train_recipe(
    name: str,
    *,
    data: Sequence[Path],
    held_out: Sequence[Path] = (),
    out: Path,
    preset: str | None = None,
    assignments: Sequence[str] = (),
) -> dict[str, Any]:
    """Train a recipe, print the result, and return its record. An interrupted run in `out` goes on,
    and a finished one is not trained again. One process trains at a time.

    Raises RevelatorError for errors that the caller can fix, before training where that is
    possible.
    """
    recipe = load_recipe(name)
    settings, values = read_settings(recipe, preset, assignments)
    arguments = _arguments(recipe, values, out)
    described = {
        "format": FORMAT,
        "recipe": name,
        "settings": settings.model_dump(mode="json") | values,
        "data": digest_of([*data, *held_out]),
        "versions": installed_versions(),
    }
    main = arguments.process_index == 0
    with ExitStack() as stack:
        if main:
            open_run(out, described)
            stack.enter_context(open_lines(out / POINTS / LOCK))
        if (out / FINISHED).exists():
            record = _read_record(out / FINISHED)
        else:
            trainer, scores = recipe.train(settings, TrainingRun(out, data, held_out, arguments))
            record = finished_record(described, trainer.state, scores)
            if main:
                _write_record(out / FINISHED, record)
            del trainer
            _leave_group()
        if main:
            shutil.rmtree(out / POINTS, ignore_errors=True)
            for line in shown(record):
                typer.echo(line)
    return record


def _leave_group() -> None:
    """End the connections to the processes that trained together, if there are any. A process that
    exits with open ones may be aborted by their threads. The trainer must be gone: torch's wrapper
    of its model would otherwise wait for these threads, which may wait for the interpreter."""
    import torch.distributed  # noqa: PLC0415

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gc.collect()
        torch.distributed.destroy_process_group()


def last_point(folder: Path) -> str | None:
    """Return the newest complete saved state: one whose last file, which the Trainer does not write
    atomically, is whole."""
    states = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    for state in sorted(states, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True):
        with suppress(ValueError):
            json.loads((state / "trainer_state.json").read_bytes())
            return str(state)
    return None


# ---- settings


def read_settings(
    recipe: Recipe[S], preset: str | None, assignments: Sequence[str]
) -> tuple[S, dict[str, Any]]:
    """Return the recipe's settings and the arguments of its trainer: those of the preset, replaced
    by `NAME=VALUE` texts.

    Raises ConfigurationError with the invalid preset or setting and the reason.
    """
    if preset is not None and preset not in recipe.presets:
        raise ConfigurationError(
            f"there is no preset {preset!r}; the presets of this recipe are "
            f"{', '.join(recipe.presets) or 'none'}"
        )
    chosen = recipe.presets[preset] if preset else {}
    given = {**ARGUMENTS, **chosen, **parse_assignments(assignments)}
    known = {field.name for field in dataclasses.fields(_imported(recipe.arguments))}
    fields = recipe.settings.model_fields
    values = {name: value for name, value in given.items() if name in known and name not in fields}
    try:
        settings = recipe.settings.model_validate(
            {name: value for name, value in given.items() if name not in values}
        )
    except ValidationError as error:
        raise ConfigurationError(
            f"settings: {explain(error.errors())}; give NAME=VALUE by --set; the names are "
            f"{', '.join(fields)}, and those of the Trainer"
        ) from None
    return settings, values


def _arguments(recipe: Recipe[Any], values: Mapping[str, Any], out: Path) -> Any:
    """Return the arguments of the trainer. Raises ConfigurationError for those that it refuses."""
    kind = _imported(recipe.arguments)
    try:
        return kind(**{**values, **recipe.fixed, "output_dir": str(out / POINTS)})
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"settings: {error}") from None


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``name=value`` texts. A value that is not valid TOML is used as plain
    text."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not (name.strip() and equals):
            raise ConfigurationError(f"--set {assignment} is not valid; use --set NAME=VALUE")
        try:
            values[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[name.strip()] = value.strip()
    return values


# ---- records


def digest_of(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of files, and of the JSON Lines in folders, in order."""
    digest = hashlib.sha256()
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        for file in files:
            try:
                digest.update(hashlib.sha256(file.read_bytes()).digest())
            except OSError as error:
                raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def installed_versions() -> dict[str, str]:
    """Return the versions of the installed packages that the weights depend on."""
    found = {"revelator": __version__, "python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def finished_record(
    described: Mapping[str, Any], state: Any, scores: Mapping[str, Score]
) -> dict[str, Any]:
    """Return the content of `checkpoint.json`, with the Trainer's final `state`."""
    losses = [[entry["step"], entry["loss"]] for entry in state.log_history if "loss" in entry]
    return {
        **described,
        "steps": state.global_step,
        "losses": losses,
        "scores": {name: score._asdict() for name, score in scores.items()},
    }


def shown(record: Mapping[str, Any]) -> list[str]:
    """Return a checkpoint's record as lines of text."""
    loss = f"{record['steps']} updates, loss {record['losses'][-1][1]:.4f}"
    scores = [
        f"{name}: {score['value']:.3f}  (chance {score['chance']:.3f}, {score['rows']} rows)"
        for name, score in record["scores"].items()
    ]
    return [loss, *(scores or ["no scores: no held-out rows were given"])]


def open_run(folder: Path, run: Mapping[str, Any]) -> None:
    """Start a run in `folder`, or check that the one there is the same, which then goes on.

    Raises ConfigurationError if its settings or its data differ.
    """
    begun = folder / RUN
    if not begun.exists():
        _write_record(begun, run)
        return
    now = json.loads(json.dumps(run))
    if changed := differences(_compared(_read_record(begun)), _compared(now)):
        raise ConfigurationError(
            f"{folder} holds another run: {'; '.join(changed)}; train as it was started, or choose "
            "another --out"
        )


def _compared(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what affects the weights of a run."""
    settings = {n: v for n, v in run["settings"].items() if n not in WITHOUT_EFFECT}
    return {**settings, "the recipe": run["recipe"], "the data": run["data"]}


def _write_record(path: Path, record: Mapping[str, Any]) -> None:
    save_whole(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] == FORMAT:
            return dict(record)
    except (ValueError, TypeError, KeyError):
        pass
    raise StoreError(
        f"{path} is damaged, or another version of Revelator wrote it: train again into another "
        "folder"
    )
