"""The command line of `revelator train`: what it passes on, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.workshop.recipes import recipe as recipes
from service.workshop.recipes import run as runs
from service.workshop.recipes.recipe import (
    LossPoint,
    Recipe,
    Score,
    TrainerSettings,
    TrainingData,
    TrainingResult,
    TrainingRun,
)


class Settings(TrainerSettings):
    depth: int = 1


def fit(settings: Settings, data: TrainingData[Any], run: TrainingRun) -> TrainingResult:
    (run.folder / "weights").write_text(f"{settings.depth} {settings.seed}")
    losses = [LossPoint(1, 4.0), LossPoint(2, float(settings.learning_rate))]
    return TrainingResult(losses, {"accuracy": Score(0.9, 0.5, 50)})


def smoke(folder: Path) -> Settings:
    return Settings(data=(folder,), learning_rate=1.0)


RECIPE: Recipe[Settings, Any] = Recipe(
    name="sft",
    settings=Settings,
    presets={"deep": {"depth": 9, "seed": 5}},
    read=lambda settings: TrainingData(settings.data, (), "hash"),
    fit=fit,
    smoke=smoke,
)


@pytest.fixture(autouse=True)
def recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "load_recipe", lambda name: RECIPE)


def train(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["train", "sft", *arguments])
    return result.exit_code, result.output


def test_a_run_by_preset_file_and_flags(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("seed = 6\nlearning_rate = 0.5\n")
    out = str(tmp_path / "out")
    code, said = train(
        "--data", "a.jsonl", "--preset", "deep", "--settings", str(tmp_path / "a.toml"),
        "--set", "seed=7", "--out", out,
    )  # fmt: skip
    assert (code, (tmp_path / "out" / "weights").read_text()) == (0, "9 7")
    assert "2 updates, loss 0.5000" in said
    assert "accuracy: 0.900  (chance 0.500, 50 rows)" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--out FOLDER"),
        (["--out", "x", "--set", "wdth=3"], "wdth: there is no such setting"),
        (["--out", "x", "--preset", "wide"], "the presets of this recipe are deep"),
        (["--out", "x", "--resume"], "holds no run to resume"),
        (["--smoke", "--set", "seed=3"], "--smoke uses made-up data and fixed settings"),
        (["--smoke", "--resume"], "--resume needs --out"),
    ],
)
def test_refusals_are_one_line_and_exit_code_2(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = train(*arguments)
    assert (code, len(output.strip().splitlines())) == (2, 1)
    assert said in output
    assert "Traceback" not in output


def test_smoke_says_what_it_found_and_its_exit_code_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = train("--smoke")
    assert (code, "loss: 4.000 at the start, 1.000 at the end" in said) == (0, True)
    monkeypatch.setattr(runs, "SMOKE_ROWS", 60)
    code, said = train("--smoke", "--out", str(tmp_path / "out"))
    assert (code, "accuracy was computed on 50 rows instead of 60" in said) == (1, True)


def test_other_processes_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    (tmp_path / "out").mkdir()
    code, said = train("--data", "a.jsonl", "--out", str(tmp_path / "out"))
    assert (code, said) == (0, "")
    assert not (tmp_path / "out" / "checkpoint.json").exists()


def test_libraries_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from service.core.errors import ConfigurationError

    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.setitem(recipes.RECIPES, "sft", "trl_that_is_not_here")
    with pytest.raises(ConfigurationError, match=r"trl_that.*: pip install '.\[train\]'"):
        recipes.load_recipe("sft")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="train router needs accelerate"):
        recipes.load_recipe("router")
