"""What the reader learns from, and that an interrupted training ends like an uninterrupted one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.conftest import need

need("torch", "transformers")
from safetensors.numpy import load_file  # noqa: E402

from service.core.errors import ConfigurationError  # noqa: E402
from service.workshop.encoders.made_up import (  # noqa: E402
    facts_of,
    made_up_rules,
    made_up_tables,
)
from service.workshop.encoders.reading import (  # noqa: E402
    groups_of,
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


def test_rules_are_answered_with_yes_as_often_as_with_no() -> None:
    kinds = [row.kind for (row,) in made_up_rules(400, random.Random(0))]
    assert {kind: kinds.count(kind) / 400 for kind in ("yes", "no", "none")} == pytest.approx(
        {"yes": 0.375, "no": 0.375, "none": 0.25}, abs=0.08
    )


def test_facts_are_asked_of_the_passages_that_tell_them(tmp_path: Path) -> None:
    texts = {
        "Ida Berg": "Ida Berg (1 May 1900 – 3 June 1980) was a painter. She was born in Oslo.",
        "Per Lund": "Per Lund (born 7 July 1950) is a writer.",
        "Snow": "Snow is a 1999 German drama film directed by Eva Roth.",
    }
    file = tmp_path / "corpus.jsonl"
    rows = [{"id": name, "title": name, "text": text} for name, text in texts.items()]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    told = [
        (row.title, row.text[slice(*row.spans[0])])
        for seed in range(20)
        for group in facts_of(file, 100, random.Random(seed))
        for row in group
        if row.spans
    ]
    known = {title for title in texts if not is_held_out(title)}
    assert {title for title, _ in told} == known
    for title, answer in [
        ("Ida Berg", "1 May 1900"), ("Ida Berg", "3 June 1980"), ("Ida Berg", "Oslo"),
        ("Per Lund", "7 July 1950"), ("Snow", "1999"), ("Snow", "Eva Roth"),
    ]:  # fmt: skip
        assert ((title, answer) in told) == (title in known)


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
