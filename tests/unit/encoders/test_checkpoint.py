"""Checkpoints that cannot be served say why, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import ConfigurationError, LoopUnavailable
from service.encoders.base import Tag
from service.encoders.checkpoint import Kind, read_card
from service.encoders.efficientrag import Labeler, QueryFilter
from tests.stubs.word_labelling import write_checkpoint

TAGGED = {"opera": Tag.CONTINUE}
Damage = Callable[[Path], object]


def labeler(folder: Path, **options: Any) -> Path:
    return write_checkpoint(folder / "labeler", "labeler", {"opera"}, TAGGED, **options)


def card(**changes: object) -> Damage:
    """Write these fields into the card."""

    def change(folder: Path) -> None:
        path = folder / "checkpoint.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("damage", "kind", "said"),
    [
        (lambda f: (f / "checkpoint.json").unlink(), "labeler", "revelator train labeler"),
        (
            lambda f: (f / "checkpoint.json").write_text("{"),
            "labeler",
            "json: Invalid JSON: EOF",
        ),
        (card(format=2), "labeler", "format: Input should be 1; use a folder of this version"),
        (card(max_pieces=0), "labeler", "max_pieces"),
        (card(further=0), "labeler", "further"),
        (card(tags=None), "labeler", "number of tags"),
        (card(words="spacy"), "labeler", "'spacy'"),
        (card(tokenizer="file"), "labeler", "tokenizer.json is missing beside it"),
        (lambda f: (f / "model.onnx").unlink(), "labeler", "model.onnx is missing beside it"),
        (lambda f: None, "filter", "it is a labeler, but a filter is needed"),
    ],
)
def test_a_card_that_does_not_fit_is_refused(
    tmp_path: Path, damage: Damage, kind: Kind, said: str
) -> None:
    folder = labeler(tmp_path)
    damage(folder)
    with pytest.raises(ConfigurationError) as raised:
        read_card(folder, kind)
    assert said in raised.value.detail
    assert str(folder) in raised.value.detail
    opened = Labeler(folder, 1) if kind == "labeler" else QueryFilter(folder, 1)
    assert opened.problem() == raised.value.detail


def as_filter(folder: Path) -> None:
    model = write_checkpoint(folder.parent / "filter", "filter", {"opera"}) / "model.onnx"
    (folder / "model.onnx").write_bytes(model.read_bytes())


def own_tokenizer(folder: Path) -> None:
    card(tokenizer="file")(folder)
    (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "model.onnx").write_bytes(b"no model"), "not a model that ONNX Runtime"),
        (lambda f: (f / "model.onnx").write_bytes(b""), "not a model that ONNX Runtime"),
        (card(tags=2), "it has 3 tags, but its card says 2"),
        (as_filter, "its inputs are"),
        (own_tokenizer, "tokenizer.json cannot be read"),
    ],
)
async def test_a_model_that_cannot_be_opened_is_remembered(
    tmp_path: Path, damage: Damage, said: str
) -> None:
    folder = labeler(tmp_path)
    damage(folder)
    opened = Labeler(folder, 1)
    assert opened.problem() is None
    for _ in range(2):
        with pytest.raises(LoopUnavailable) as raised:
            await opened.label("who?", ["an opera"])
        assert said in raised.value.detail
        assert str(folder) in raised.value.detail
    assert opened.problem() == raised.value.detail


async def test_inputs_are_cut_to_what_the_card_says(tmp_path: Path) -> None:
    opened = Labeler(labeler(tmp_path, max_pieces=16), 1)
    long, short = "so " * 30 + "opera", "so opera"
    labels = await opened.label("who?", [long, short])
    assert [label.tag for label in labels] == [Tag.TERMINATE, Tag.CONTINUE]


def test_packages_that_are_not_installed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    problem = Labeler(labeler(tmp_path), 1).problem()
    assert problem is not None
    assert "onnxruntime" in problem
    assert "pip install '.[local]'" in problem
