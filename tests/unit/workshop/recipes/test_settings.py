"""A recipe's settings: preset, file and flags; what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.core.errors import ConfigurationError
from service.workshop.recipes.recipe import (
    LossPoint,
    Score,
    TrainerSettings,
    TrainingResult,
    load_recipe,
    parse_assignments,
    read_settings,
)
from service.workshop.recipes.run import finished_record, judge, shown_scores, write_losses

PRESETS = {"paper": {"epochs": 5, "learning_rate": 1e-5, "warm_up": 0.03}}


def read(**given: Any) -> TrainerSettings:
    return read_settings(TrainerSettings, PRESETS, **given)


def test_flags_over_file_over_preset(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('learning_rate = 2e-5\nschedule = "linear"\nseed = 3\n')
    flags = parse_assignments(["seed=4", "precision=bf16", "held_out=['a', 'b']"])
    found = read(preset="paper", file=tmp_path / "a.toml", flags=flags)
    assert (found.epochs, found.warm_up) == (5, 0.03)
    assert (found.learning_rate, found.schedule) == (2e-5, "linear")
    assert (found.seed, found.precision) == (4, "bf16")
    assert found.held_out == (Path("a"), Path("b"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"preset": "other"}, "'other'; the presets of this recipe are paper"),
        (
            {"flags": {"learning_rat": 1}},
            "learning_rat: there is no such setting; the settings are data,",
        ),
        ({"flags": {"batch": 0}}, "batch: .* greater than or equal to 1"),
        ({"flags": {"schedule": "steps"}}, "schedule: .*cosine"),
        ({"file": Path("missing.toml")}, "missing.toml: cannot be read"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read(**given)


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("seed = ")
    with pytest.raises(ConfigurationError, match=r"a\.toml is not valid TOML"):
        read(file=tmp_path / "a.toml")


@pytest.mark.parametrize("text", ["seed", "=3", " = 3"])
def test_an_assignment_has_a_name_and_a_value(text: str) -> None:
    with pytest.raises(ConfigurationError, match="NAME=VALUE"):
        parse_assignments([text])


def test_an_unknown_recipe_is_named() -> None:
    with pytest.raises(ConfigurationError, match="the recipes are sft, router"):
        load_recipe("sftt")


def test_the_table_of_losses(tmp_path: Path) -> None:
    losses = [LossPoint(1, 2.0, 1e-4), LossPoint(10, float("nan")), LossPoint(20, 0.5)]
    write_losses(tmp_path, losses)
    lines = (tmp_path / "losses.csv").read_text().splitlines()
    assert lines == ["step,loss,learning_rate", "1,2,0.0001", "10,nan,", "20,0.5,"]


def test_above_chance_is_more_than_luck() -> None:
    assert Score(0.65, 0.5, 50).above_chance
    assert not Score(0.63, 0.5, 50).above_chance
    assert not Score(1.0, 1.0, 50).above_chance
    assert not Score(0.0, 0.0, 50).above_chance
    assert not Score(1.0, 0.5, 0).above_chance


def record(first: float, last: float, **scores: Score) -> dict[str, Any]:
    losses = [LossPoint(n, first if n <= 10 else last) for n in range(1, 101)]
    return finished_record({"recipe": "toy"}, TrainingResult(losses, scores))


def test_a_smoke_run_judges_itself() -> None:
    good = Score(0.9, 0.5, 50)
    assert judge(record(4.0, 1.9, main=good, other=Score(0.1, 0.5, 50))) == []
    assert judge(record(4.0, 2.0, main=good)) == [
        "the final loss is not below half of the initial loss"
    ]
    assert judge(record(4.0, 1.0)) == ["the run produced no score"]
    assert judge(record(4.0, 1.0, main=Score(0.6, 0.5, 50))) == ["main is not above chance"]
    assert judge(record(4.0, 1.0, main=Score(0.9, 0.5, 49))) == [
        "main was computed on 49 rows instead of 50"
    ]
    assert judge(record(4.0, float("nan"), main=good))


def test_scores_are_shown() -> None:
    shown = shown_scores(record(4.0, 1.0, main=Score(0.9, 0.5, 50)))
    assert shown == ["main: 0.900  (chance 0.500, 50 rows)"]
    assert "no held-out rows" in shown_scores(record(4.0, 1.0))[0]
