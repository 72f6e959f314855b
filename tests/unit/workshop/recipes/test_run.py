"""A run of the framework: leaks, resuming bit for bit, what is refused, what is written."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need

torch = need("torch", "transformers")

from service.core.errors import ConfigurationError, InvalidRequest, RevelatorError, StoreError
from service.workshop.facts.splits import is_held_out
from service.workshop.recipes import trainer
from service.workshop.recipes.recipe import TrainingRun
from service.workshop.recipes.run import POINTS, read_checkpoint, run_recipe
from tests.unit.workshop.recipes.toy import RECIPE, ToySettings, point

pytestmark = pytest.mark.usefixtures("train_extra")
STEPS = 30


def titles(held_out: bool) -> list[str]:
    names = (f"Title {n}" for n in itertools.count())
    return list(itertools.islice((n for n in names if is_held_out(n) is held_out), 60))


@pytest.fixture
def settings(tmp_path: Path) -> ToySettings:
    for name, held_out in (("train", False), ("test", True)):
        rows = [point(n, title) for n, title in enumerate(titles(held_out))]
        text = "\n".join(json.dumps(row) for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return ToySettings(
        data=(tmp_path / "train.jsonl",), held_out=(tmp_path / "test.jsonl",), steps=STEPS,
        batch=8, rows_at_once=4, learning_rate=0.05, save_every=5, log_every=1, device="cpu",
    )  # fmt: skip


def train(settings: ToySettings, folder: Path, **options: Any) -> dict[str, Any]:
    return run_recipe(RECIPE, settings, TrainingRun(folder, say=lambda _: None, **options))


def weights(folder: Path) -> bytes:
    state = torch.load(folder / "weights.pt", weights_only=True)
    return b"".join(value.numpy().tobytes() for value in state.values())


class Interrupted(Exception):
    pass


def train_until(settings: ToySettings, folder: Path, step: int, monkeypatch: Any) -> None:
    """Train and stop after an update, without any clearing up, as a kill does."""

    def say(line: str) -> None:
        if line.startswith(f"step {step} "):
            raise Interrupted

    with pytest.raises(Interrupted):
        run_recipe(RECIPE, settings, TrainingRun(folder, say=say))


def test_a_run_writes_weights_record_table_and_plot(settings: ToySettings, tmp_path: Path) -> None:
    record = train(settings, tmp_path / "run")
    assert record == read_checkpoint(tmp_path / "run", "toy")
    assert record["data"]["rows"] == record["data"]["held_out_rows"] == 60
    assert record["settings"]["learning_rate"] == 0.05
    assert {"revelator", "torch", "transformers"} <= record["versions"].keys()
    assert record["scores"]["sign"]["value"] > 0.7
    table = (tmp_path / "run" / "losses.csv").read_text(encoding="utf-8").splitlines()
    assert len(table) == STEPS + 1
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"run.json", "checkpoint.json", "losses.csv", "weights.pt"}


@pytest.mark.parametrize("step", [3, 7, 15, 23])
def test_interrupted_and_resumed_gives_the_same_weights(
    settings: ToySettings, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(settings, tmp_path / "whole")
    train_until(settings, tmp_path / "cut", step, monkeypatch)
    with pytest.raises(StoreError, match="--resume"):
        read_checkpoint(tmp_path / "cut", "toy")
    train(settings, tmp_path / "cut", resume=True)
    assert weights(tmp_path / "whole") == weights(tmp_path / "cut")
    tables = [(tmp_path / name / "losses.csv").read_text() for name in ("whole", "cut")]
    assert tables[0] == tables[1]


def test_a_point_cut_short_is_passed_over(
    settings: ToySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(settings, tmp_path / "whole")
    train_until(settings, tmp_path / "cut", 12, monkeypatch)
    points = tmp_path / "cut" / POINTS
    (points / "checkpoint-10" / trainer.WHOLE).unlink()
    (points / "checkpoint-10" / "optimizer.pt").write_bytes(b"half")
    assert trainer.last_point(points) == points / "checkpoint-5"
    train(settings, tmp_path / "cut", resume=True)
    assert weights(tmp_path / "whole") == weights(tmp_path / "cut")


def test_cut_between_the_last_update_and_the_checkpoint(
    settings: ToySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(settings, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", saving_until_the_end(tmp_path / "cut" / "weights.pt"))
        with pytest.raises(Interrupted):
            train(settings, tmp_path / "cut")
    train(settings, tmp_path / "cut", resume=True)
    assert weights(tmp_path / "whole") == weights(tmp_path / "cut")


def saving_until_the_end(last: Path) -> Any:
    save = torch.save

    def saving(value: Any, path: Any, *rest: Any, **options: Any) -> None:
        if path == last:
            raise Interrupted
        save(value, path, *rest, **options)

    return saving


def test_a_run_that_has_ended_is_not_trained_again(settings: ToySettings, tmp_path: Path) -> None:
    record = train(settings, tmp_path / "run")
    (tmp_path / "run" / "weights.pt").unlink()
    assert train(settings, tmp_path / "run", resume=True) == record
    assert not (tmp_path / "run" / "weights.pt").exists()


def test_a_folder_with_a_run_is_not_begun_again(settings: ToySettings, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no run to resume"):
        train(settings, tmp_path / "run", resume=True)
    train(settings, tmp_path / "run")
    with pytest.raises(ConfigurationError, match="--resume"):
        train(settings, tmp_path / "run")


def test_other_settings_or_data_are_not_resumed(
    settings: ToySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_until(settings, tmp_path / "run", 6, monkeypatch)
    other = settings.model_copy(update={"learning_rate": 0.1})
    with pytest.raises(ConfigurationError, match=r"learning_rate was 0\.05, is 0\.1"):
        train(other, tmp_path / "run", resume=True)
    moved = settings.model_copy(update={"data": (tmp_path / "moved.jsonl",), "log_every": 2})
    text = settings.data[0].read_text(encoding="utf-8")
    (tmp_path / "moved.jsonl").write_text(text.replace('"point 7"', '"point seven"'))
    with pytest.raises(ConfigurationError, match="other data"):
        train(moved, tmp_path / "run", resume=True)
    (tmp_path / "moved.jsonl").write_text(text, encoding="utf-8")
    train(moved, tmp_path / "run", resume=True)


def test_a_leak_is_refused_before_anything_is_written(
    settings: ToySettings, tmp_path: Path
) -> None:
    title = titles(held_out=True)[0]
    with settings.data[0].open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(point(1, title)) + "\n" + json.dumps(point(2, title)))
    with pytest.raises(InvalidRequest, match=rf"train.jsonl:61: .*{title}.* 1 more row"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    swapped = settings.model_copy(update={"data": settings.held_out, "held_out": ()})
    with pytest.raises(InvalidRequest, match=r"test.jsonl:1: .* 59 more rows"):
        train(swapped, tmp_path / "run")
    measured = settings.model_copy(update={"data": (tmp_path / "a",), "held_out": settings.data})
    (tmp_path / "a").write_text(json.dumps(point(0, titles(held_out=False)[0])))
    with pytest.raises(InvalidRequest, match=r"train.jsonl:1: not made from what is held out"):
        train(measured, tmp_path / "run")


def test_no_data_is_said(settings: ToySettings, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--data"):
        train(settings.model_copy(update={"data": ()}), tmp_path / "run")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigurationError, match="no rows"):
        train(settings.model_copy(update={"data": (tmp_path / "empty",)}), tmp_path / "run")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"format": 9, "versions": {"revelator": "7.1"}}', r"format 9 .* \(7\.1\)"),
        ('{"format": 1, "recipe": "router"}', "of router, not of toy"),
    ],
)
def test_other_checkpoints_are_refused(tmp_path: Path, written: str, said: str) -> None:
    (tmp_path / "checkpoint.json").write_text(written)
    with pytest.raises(StoreError, match=said):
        read_checkpoint(tmp_path, "toy")


def test_without_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RevelatorError, match=r"contains no finished checkpoint$"):
        read_checkpoint(tmp_path, "toy")


def test_batch_means_the_same_on_any_number_of_devices(
    settings: ToySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(**changes: int) -> int:
        changed = settings.model_copy(update=changes)
        given = trainer.trainer_arguments(changed, TrainingRun(tmp_path))
        at_once: int = given["per_device_train_batch_size"]
        return at_once * given["gradient_accumulation_steps"] * trainer.devices(changed)

    for processes in ("1", "2", "8"):
        monkeypatch.setenv("WORLD_SIZE", processes)
        assert rows(batch=32, rows_at_once=4) == rows(batch=32, rows_at_once=64) == 32
    with pytest.raises(ConfigurationError, match="multiple of 8"):
        rows(batch=12, rows_at_once=4)
