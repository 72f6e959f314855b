"""The contract of a recipe: what it reads, how it trains, and what it hands back.

A recipe is a value, `RECIPE`, in a module of its own that `registry.py` names. It says how its rows
are read and how weights come out of them; settings, leaks, resuming, the loss table and the
checkpoint's record are the framework's (`running.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from service.workshop.recipes.settings import RecipeSettings

S = TypeVar("S", bound=RecipeSettings)
R = TypeVar("R")


@dataclass(frozen=True)
class TrainingData(Generic[R]):
    """The rows that train and those that only measure; `sha256` changes where any row does."""

    train: Sequence[R]
    held_out: Sequence[R]
    sha256: str


@dataclass(frozen=True)
class LossPoint:
    """The mean loss over the updates since the point before; `step` counts updates from 1."""

    step: int
    loss: float
    learning_rate: float | None = None


@dataclass(frozen=True)
class Score:
    """A share of `rows` held-out rows; `chance` is what guessing without reading them gets."""

    value: float
    chance: float
    rows: int

    @property
    def above_chance(self) -> bool:
        """True where guessing does so well less than once in forty times (two standard errors)."""
        deviation = math.sqrt(self.chance * (1 - self.chance) / self.rows) if self.rows else 1.0
        return self.value > self.chance + 2 * max(deviation, 1e-9)


@dataclass(frozen=True)
class Outcome:
    """`scores` by name, the one that `--smoke` judges first; empty without held-out rows."""

    losses: Sequence[LossPoint]
    scores: Mapping[str, Score] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One training run: where it writes, and whether it goes on from what lies there.

    `main` is False in all but one of the processes that train together; only that one writes.
    """

    folder: Path
    resume: bool = False
    main: bool = True
    say: Callable[[str], None] = print


@dataclass(frozen=True)
class Recipe(Generic[S, R]):
    """`read` raises InvalidRequest naming the first row that is wrong or leaks, and how many are.

    `fit` trains, writes the weights into `run.folder` and returns losses and scores (in the main
    process; the others' are not read). `smoke` writes tiny data into a folder, with 50 rows held
    out, and returns the settings of a run over it that takes minutes at most on one CPU core.
    """

    name: str
    settings: type[S]
    presets: Mapping[str, Mapping[str, Any]]
    read: Callable[[S], TrainingData[R]]
    fit: Callable[[S, TrainingData[R], Run], Outcome]
    smoke: Callable[[Path], S]
