"""What the reader learns from, and that an interrupted training ends like an uninterrupted one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import need

need("torch", "transformers")
from safetensors.numpy import load_file  # noqa: E402

from service.core.errors import ConfigurationError  # noqa: E402
from service.workshop.encoders.reading import (  # noqa: E402
    groups_of,
    made_up_tables,
    places,
    without,
)
from service.workshop.facts.splits import is_held_out  # noqa: E402
from service.workshop.recipes.reader import Fitting, read, smoke  # noqa: E402
from service.workshop.recipes.recipe import TrainingRun  # noqa: E402


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    smoke(folder)
    return folder


def test_answers_are_whole_words_of_the_passage_and_a_third_has_none(questions: Path) -> None:
    groups = groups_of(questions, held_out=False, rng=random.Random(0))
    groups += made_up_tables(300, random.Random(0))
    rows = [row for group in groups for row in group]
    for row in rows:
        assert (row.kind == "span") == bool(row.spans)
        for start, end in row.spans:
            assert not row.text[start - 1].isalnum()
            assert not row.text[end : end + 1].isalnum()
    none = sum(all(row.kind == "none" for row in group) for group in groups) / len(groups)
    assert 0.2 < none < 0.4
    assert all(not is_held_out(row.title) for row in rows if row.title)
    assert all(
        is_held_out(row.title) and is_held_out(row.question)
        for (row,) in groups_of(questions, held_out=True, rng=random.Random(0))
    )


def test_places_and_what_is_left_without_them() -> None:
    text = "Anna lives in Rome. Romeo does not. Dr. Bo moved to Rome (Italy) later."
    found = places(["Rome"], text)
    assert [text[a:b] for a, b in found] == ["Rome", "Rome"]
    assert without(text, found) == "Romeo does not."


def test_an_interrupted_training_ends_with_the_same_weights(
    questions: Path, tmp_path: Path
) -> None:
    settings = smoke(questions).model_copy(update={"steps": 4, "batch": 4})
    data = read(settings).train
    Fitting(settings, data, TrainingRun(tmp_path / "whole", say=lambda _: None)).fit()
    broken = Fitting(settings, data, TrainingRun(tmp_path / "broken", say=lambda _: None))
    update, calls = broken._update, [0]

    def stopping(*arguments: object) -> float:
        calls[0] += 1
        broken.stopped = calls[0] == 2
        return update(*arguments)  # type: ignore[arg-type]

    broken._update = stopping  # type: ignore[method-assign]
    with pytest.raises(SystemExit, match="--resume"):
        broken.fit()
    said: list[str] = []
    Fitting(settings, data, TrainingRun(tmp_path / "broken", resume=True, say=said.append)).fit()
    assert said[0] == "resumed at step 2"
    whole, resumed = (
        load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken")
    )
    assert all((whole[name] == resumed[name]).all() for name in whole)


def test_a_base_without_an_encoder_is_named(questions: Path, tmp_path: Path) -> None:
    settings = smoke(questions)
    (tmp_path / "tokenizer.json").write_bytes((settings.base / "tokenizer.json").read_bytes())
    bad = settings.model_copy(update={"base": tmp_path})
    with pytest.raises(ConfigurationError, match="has no encoder to start from"):
        Fitting(bad, [], TrainingRun(tmp_path / "run", say=lambda _: None))
