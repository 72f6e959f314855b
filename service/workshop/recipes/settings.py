"""The settings of a recipe: a preset, overridden by a TOML file, overridden by flags."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from service.core.errors import ConfigurationError
from service.core.settings.base import Section

S = TypeVar("S", bound="RecipeSettings")


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


WITHOUT_EFFECT = frozenset({"data", "held_out", "save_every", "log_every"})


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
