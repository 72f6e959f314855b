"""The contract of a recipe, and the list of recipes.

A recipe is a value of type `Recipe` in a module that `RECIPES` names. It defines how its rows are
read and how weights are trained on them. The framework (`run.py`) is responsible for settings, leak
checks, resuming, the loss table and the checkpoint's record.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from service.core.errors import ConfigurationError
from service.core.extras import lacking, missing_packages
from service.workshop.facts.rows import AnyRow, read_rows_of
from service.workshop.recipes.settings import RecipeSettings

S = TypeVar("S", bound=RecipeSettings)
R = TypeVar("R")


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
