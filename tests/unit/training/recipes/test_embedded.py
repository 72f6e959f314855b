"""The embedded model's recipe: what it refuses, and a cut run that goes on as if it were not."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import need

torch = need("torch", "transformers")

from service.errors import ConfigurationError
from service.training.clock import UpdateClock
from service.training.recipes.embedded import EmbeddedSettings, fit_embedded, plan_of, read_folder
from service.training.recipes.embedded_smoke import write_smoke_data
from service.training.recipes.recipe import LossPoint, Run, TrainingData

NOTHING: TrainingData[object] = TrainingData((), (), "")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_smoke_data(folder)
    return folder


@pytest.fixture
def settings(data: Path) -> EmbeddedSettings:
    return EmbeddedSettings(
        data=(data,), steps=9, copying=0.4, vocabulary=400, layers=1, width=64, step_tokens=256,
        score_rows=2, save_every=2, log_every=1,
    )  # fmt: skip


class Cut(Exception):
    pass


def cut_at(step: int, line: str) -> None:
    if line.startswith(f"step {step} "):
        raise Cut


@pytest.mark.parametrize("step", [1, 3, 6])
def test_cut_and_resumed_is_as_uncut(settings: EmbeddedSettings, tmp_path: Path, step: int) -> None:
    losses: dict[str, list[LossPoint]] = {}
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    quiet = Run(tmp_path / "whole", say=lambda _: None)
    losses["whole"] = list(fit_embedded(settings, NOTHING, quiet).losses)
    with pytest.raises(Cut):
        fit_embedded(settings, NOTHING, Run(tmp_path / "cut", say=lambda line: cut_at(step, line)))
    resumed = Run(tmp_path / "cut", resume=True, say=lambda _: None)
    losses["cut"] = list(fit_embedded(settings, NOTHING, resumed).losses)
    assert losses["cut"] == losses["whole"]
    assert len(losses["whole"]) == 9
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]


def test_minutes_are_the_clock_unless_steps_are_given(settings: EmbeddedSettings) -> None:
    by_updates = plan_of(settings, Path("out"))
    assert isinstance(by_updates.clock, UpdateClock)
    assert (by_updates.clock.limit, by_updates.copying, by_updates.save_every) == (9, 3.6, 2)
    minutes = settings.model_copy(update={"steps": None, "minutes": 10.0})
    by_time = plan_of(minutes, Path("out"))
    assert not isinstance(by_time.clock, UpdateClock)
    assert (by_time.clock.limit, by_time.copying, by_time.save_every) == (600, 240, 180)


def test_the_hash_is_of_the_folders_content(settings: EmbeddedSettings, tmp_path: Path) -> None:
    write_smoke_data(tmp_path)
    same = settings.model_copy(update={"data": (tmp_path,)})
    assert read_folder(settings).sha256 == read_folder(same).sha256
    with (tmp_path / "squad" / "corpus.jsonl").open("a") as file:
        file.write("\n")
    assert read_folder(settings).sha256 != read_folder(same).sha256


def test_what_cannot_be_is_said(settings: EmbeddedSettings, tmp_path: Path) -> None:
    for changes, said in (
        ({"data": ()}, "one folder"),
        ({"data": (tmp_path,)}, r"no .*2wikimultihopqa/corpus\.jsonl, "),
        ({"shares": {"rout": 1.0}}, "no role 'rout'"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            read_folder(settings.model_copy(update=changes))
