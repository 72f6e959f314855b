"""The contract of a recipe, its settings, and the list of recipes.

A recipe is a value of type `Recipe` in a module that `RECIPES` names. It defines how its rows are
read and how weights are trained on them. The framework (`run.py`) is responsible for settings, leak
checks, resuming, the loss table and the checkpoint's record. Its settings are those of a preset,
overridden by a TOML file, overridden by flags.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field, ValidationError

from service.core.errors import ConfigurationError
from service.core.extras import lacking, missing_packages
from service.core.settings.base import Section
from service.workshop.facts.rows import AnyRow, read_rows_of

S = TypeVar("S", bound="RecipeSettings")
R = TypeVar("R")
WITHOUT_EFFECT = frozenset({"data", "held_out", "save_every", "log_every"})


class RecipeSettings(Section):
    """The settings that every recipe has. Data, and how often to save or print, do not change the
    weights' identity."""

    data: tuple[Path, ...] = Field((), description="Rows used for training.")
    held_out: tuple[Path, ...] = Field(
        (), description="Rows used only for evaluation. Without them there are no scores."
    )
    seed: int = 0
    save_every: int = Field(200, ge=1, description="Number of updates between two saved states.")
    log_every: int = Field(
        10, ge=1, description="Number of updates between two rows of the loss table."
    )


class TrainerSettings(RecipeSettings):
    """Additional settings of recipes based on `transformers.Trainer`. `steps`, if set, replaces
    `epochs`.

    `batch` is the number of rows of one update over all devices, so its effect does not depend on
    their number; `rows_at_once` is the number of rows that one device processes at a time.
    """

    epochs: float = Field(1.0, gt=0)
    steps: int | None = Field(None, ge=1)
    batch: int = Field(32, ge=1)
    rows_at_once: int = Field(8, ge=1)
    learning_rate: float = Field(1e-4, gt=0)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warm_up: float = Field(
        0.1,
        ge=0,
        description="Number of first updates in which the learning rate increases, or their share "
        "if below 1.",
    )
    weight_decay: float = Field(0.0, ge=0)
    clip: float = Field(1.0, gt=0, description="Maximum norm of a gradient.")
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: Literal["auto", "cpu"] = "auto"


@dataclass(frozen=True)
class TrainingData(Generic[R]):
    """The rows for training and for evaluation. `sha256` is the digest of all rows."""

    train: Sequence[R]
    held_out: Sequence[R]
    sha256: str


@dataclass(frozen=True)
class LossPoint:
    """The mean loss over the updates since the previous point. `step` counts updates from 1."""

    step: int
    loss: float
    learning_rate: float | None = None


@dataclass(frozen=True)
class Score:
    """A share of `rows` held-out rows. `chance` is the expected score of guessing without reading
    the rows."""

    value: float
    chance: float
    rows: int

    @property
    def above_chance(self) -> bool:
        """Whether guessing reaches this score less than once in forty times (two standard
        errors)."""
        deviation = math.sqrt(self.chance * (1 - self.chance) / self.rows) if self.rows else 1.0
        return self.value > self.chance + 2 * max(deviation, 1e-9)


@dataclass(frozen=True)
class TrainingResult:
    """The losses and scores of a run.

    `scores` are by name and empty without held-out rows; `--smoke` checks the first one.
    """

    losses: Sequence[LossPoint]
    scores: Mapping[str, Score] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingRun:
    """One training run: its folder, and whether it resumes from the files there.

    Of the processes that train together, only the one with `main` writes files.
    """

    folder: Path
    resume: bool = False
    main: bool = True
    say: Callable[[str], None] = print


@dataclass(frozen=True)
class Recipe(Generic[S, R]):
    """How a model is trained.

    `read` returns the rows. It raises InvalidRequest with the first row that is invalid or leaks,
    and the number of such rows. `fit` trains, writes the weights to `run.folder` and returns losses
    and scores, of which those of the main process are used. `smoke` writes a small data set with 50
    held-out rows to a folder, and returns settings for a run on it that takes at most minutes on
    one CPU core.
    """

    name: str
    settings: type[S]
    presets: Mapping[str, Mapping[str, Any]]
    read: Callable[[S], TrainingData[R]]
    fit: Callable[[S, TrainingData[R], TrainingRun], TrainingResult]
    smoke: Callable[[Path], S]


RECIPES = {  # as module:name, imported on use
    "sft": "service.workshop.recipes.sft:RECIPE",
    "router": "service.workshop.recipes.router:RECIPE",
    "reader": "service.workshop.recipes.reader:RECIPE",
    "labeler": "service.workshop.recipes.labels:LABELER",
    "filter": "service.workshop.recipes.labels:FILTER",
}


def load_recipe(name: str) -> Recipe[Any, Any]:
    """Import and return a recipe.

    Raises ConfigurationError if its name is unknown or its libraries are not installed.
    """
    if name not in RECIPES:
        raise ConfigurationError(
            f"there is no recipe {name!r}; the recipes are {', '.join(RECIPES)}"
        )
    what = f"train {name}"
    # The Trainer of transformers imports accelerate only when training starts.
    if problem := missing_packages(what, ["accelerate"], "train"):
        raise ConfigurationError(problem)
    try:
        module, _, attribute = RECIPES[name].partition(":")
        recipe: Recipe[Any, Any] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("service"):
            raise
        raise ConfigurationError(lacking(what, error, "train")) from None
    return recipe


def read_data(kind: type[AnyRow], settings: RecipeSettings) -> TrainingData[AnyRow]:
    """Return the rows of the files in `settings`.

    Raises InvalidRequest, with file and line, for an invalid row or one that may not be used this
    way, and ConfigurationError if there are no files or no rows.
    """
    if not settings.data:
        raise ConfigurationError("data: name the file or files to train on (--data)")
    train = [row for path in settings.data for row in read_rows_of(kind, path, "train")]
    if not train:
        raise ConfigurationError(f"data: no rows in {', '.join(map(str, settings.data))}")
    held_out = [row for path in settings.held_out for row in read_rows_of(kind, path, "test")]
    return TrainingData(train, held_out, hash_rows(train, held_out))


def hash_rows(*parts: Sequence[AnyRow]) -> str:
    """Return the SHA-256 of the rows of each part, in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}\n".encode())
        for row in part:
            digest.update(row.model_dump_json().encode() + b"\n")
    return digest.hexdigest()


def read_settings(
    kind: type[S],
    presets: Mapping[str, Mapping[str, Any]],
    *,
    preset: str | None = None,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
) -> S:
    """Return the settings. Raises ConfigurationError with the invalid preset, file or setting and
    the reason."""
    if preset is not None and preset not in presets:
        raise ConfigurationError(
            f"there is no preset {preset!r}; the presets of this recipe are {', '.join(presets)}"
        )
    chosen = dict(presets[preset]) if preset else {}
    try:
        return kind.model_validate(chosen | _read_toml(file) | dict(flags or {}))
    except ValidationError as error:
        raise ConfigurationError(_explain(kind, error)) from None


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


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings that affect the weights and differ between two runs, given as JSON."""
    names = sorted((before.keys() | now.keys()) - WITHOUT_EFFECT)
    return [
        f"{name} was {before.get(name)!r}, is {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _read_toml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from None


def _explain(kind: type[RecipeSettings], error: ValidationError) -> str:
    problems = []
    for problem in error.errors():
        name = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            text = f"there is no such setting; the settings are {', '.join(kind.model_fields)}"
        elif problem["type"] == "missing":
            text = f"this setting is required; add --set {name}=VALUE"
        else:
            text = problem["msg"]
        problems.append(f"{name}: {text}")
    return "settings: " + "; ".join(problems)
