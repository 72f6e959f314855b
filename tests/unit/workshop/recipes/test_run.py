"""`revelator train`: settings, folders and records; what is refused, and how it is said."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.conftest import need

torch = need("torch", "transformers", "accelerate")

from transformers import Trainer

from service.cli.main import app
from service.core.errors import ConfigurationError
from service.core.files import open_lines
from service.core.settings.base import Section
from service.workshop.recipes import run as runs
from service.workshop.recipes.run import Recipe, Score, TrainingRun, load_recipe, read_settings
from service.workshop.rows import Sourced
from tests.unit.workshop.recipes.rows import write_rows

CHECKPOINT, RUN = "checkpoint.json", "run.json"


class Point(Sourced):
    x: list[float]
    y: float


class ToySettings(Section):
    width: int = 8


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Linear(width, 1))

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        found = self.layers(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


def train_toy(settings: ToySettings, run: TrainingRun) -> tuple[Any, dict[str, Score]]:
    train, held_out = run.rows(Point)
    rows: Any = [{"x": row.x, "labels": row.y} for row in train]
    trainer = Trainer(Net(settings.width), run.arguments, train_dataset=rows)
    if not run.fit(trainer):
        return trainer, {}
    (run.folder / "weights").write_text(f"{settings.width} {run.arguments.seed}")
    return trainer, {"sign": Score(0.9, 0.5, len(held_out))} if held_out else {}


PRESETS = {"wide": {"width": 9, "learning_rate": 0.02, "seed": 5, "max_steps": 2, "use_cpu": True}}
TOY: Recipe[ToySettings] = Recipe(settings=ToySettings, presets=PRESETS, train=train_toy)


@pytest.fixture(autouse=True)
def recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "load_recipe", lambda name: TOY)


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path]:
    def point(name: str, number: int, rng: Any) -> dict[str, Any]:
        return {"question": name, "x": [number % 7 / 7, number % 5 / 5], "y": number % 7 / 7}

    return write_rows(tmp_path, point, 24)


def train(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["train", "sft", *map(str, arguments)])
    return result.exit_code, result.output


def test_settings_over_preset(data: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said = train(
        "--data", data[0], "--held-out", data[1], "--preset", "wide",
        "--set", "seed=7", "--set", "logging_steps=1", "--out", out,
    )  # fmt: skip
    assert code == 0, said
    assert (out / "weights").read_text() == "9 7"
    assert "2 updates, loss " in said
    assert "sign: 0.900  (chance 0.500, 20 rows)" in said
    record = json.loads((out / CHECKPOINT).read_text())
    assert [step for step, _ in record["losses"]] == [1, 2]
    assert record["settings"] == {
        **runs.ARGUMENTS, **PRESETS["wide"], "seed": 7, "logging_steps": 1,
    }  # fmt: skip
    assert record["versions"]["transformers"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "x", "--out", "x"], "x: cannot be read: No such file"),
        (["--data", "x", "--out", "x", "--set", "wdth=3"], "wdth: there is no such field"),
        (["--data", "x", "--out", "x", "--set", "width=a"], "width: Input should be a valid integ"),
        (["--data", "x", "--out", "x", "--set", "width"], "--set width is not valid"),
        (["--data", "x", "--out", "x", "--set", "=3"], "use --set NAME=VALUE"),
        (["--data", "x", "--out", "x", "--set", "warmup_steps=-1"], "settings: warmup_steps must"),
        (["--data", "x", "--out", "x", "--preset", "tall"], "the presets of this recipe are wide"),
        (["--data", "empty", "--out", "y"], "no rows in empty"),
    ],
)
def test_refusals_are_one_line_and_exit_code_2(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("")
    code, output = train(*arguments)
    assert (code, len(output.strip().splitlines())) == (2, 1)
    assert said in output
    assert "Traceback" not in output


def test_a_run_goes_on_as_it_was_started_or_not_at_all(
    data: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ["--data", data[0], "--preset", "wide", "--out", out]
    with open_lines(out / "points" / "lock"):
        assert "another process is writing" in train(*options)[1]
    assert train(*options)[0] == 0
    code, said = train(*options, "--set", "save_steps=9")  # without effect on weights
    assert (code, "2 updates" in said, "no scores: no held-out rows" in said) == (0, True, True)
    code, said = train(*options, "--set", "width=3")
    assert (code, "holds another run: width was 9 and is 3" in said) == (2, True)
    data[0].write_text(data[0].read_text().replace("0.2", "0.3"))
    assert "the data was" in train(*options)[1]
    for content in ("{}", '{"format": 1}'):
        (out / RUN).write_text(content)
        assert "is damaged, or another version" in train(*options)[1]


def test_other_processes_write_nothing(
    data: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr("transformers.TrainingArguments.process_index", 1)
    monkeypatch.setattr(Trainer, "is_world_process_zero", lambda self: False)
    code, said = train("--data", data[0], "--preset", "wide", "--out", tmp_path / "out")
    assert (code, "updates" in said) == (0, False)
    assert not list((tmp_path / "out").glob("*.json"))


@pytest.mark.parametrize("broken", ["", '{"epoch": 1.0, "log_his'])
def test_a_state_that_was_being_saved_is_passed_over(broken: str, tmp_path: Path) -> None:
    for number, text in ((5, "{}"), (10, "{}"), (15, broken)):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}" / "trainer_state.json").write_text(text)
    (tmp_path / "checkpoint-20").mkdir()
    assert runs.last_point(tmp_path) == str(tmp_path / "checkpoint-10")
    assert runs.last_point(tmp_path / "checkpoint-20") is None


def test_a_leak_is_refused(data: tuple[Path, Path], tmp_path: Path) -> None:
    code, said = train("--data", data[1], "--preset", "wide", "--out", tmp_path / "out")
    assert (code, "made from what is held out" in said) == (2, True)


def test_libraries_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.setattr(runs, "RECIPES", {"sft": "trl_that_is_not_here:RECIPE"})
    with pytest.raises(ConfigurationError, match=r"trl_that.*: pip install '.\[train\]'"):
        load_recipe("sft")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="train router needs accelerate"):
        load_recipe("router")


def test_presets_are_the_papers() -> None:
    from service.workshop.recipes import sft

    hanrag, autorag = (
        read_settings(sft.RECIPE, name, ["model=base"]) for name in ("hanrag", "autorag")
    )
    assert hanrag[1]["learning_rate"] == 1e-4
    assert hanrag[0].lora_rank > 0 == autorag[0].lora_rank
    assert (autorag[1]["learning_rate"], autorag[1]["num_train_epochs"]) == (1e-5, 5)
    with pytest.raises(ConfigurationError, match=r"model: Field required; .*--set;.*model"):
        read_settings(sft.RECIPE, "small", [])
