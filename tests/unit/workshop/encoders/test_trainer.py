"""The order of rows in training, and what settings say of the heads."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need

need("accelerate")

from service.core.errors import ConfigurationError
from service.workshop.recipes.labels import (
    FILTER,
    LABELER,
    ByLength,
    LabelerSettings,
    LabelSettings,
    heads_of,
    open_network,
    open_tokenizer,
)
from service.workshop.recipes.recipe import Recipe, read_settings

LENGTHS = [5, 50, 6, 60, 7, 70, 8, 80] * 8


def test_an_epoch_has_every_row_once_in_an_order_of_its_own() -> None:
    one, two = ByLength(LENGTHS, 4, 0), ByLength(LENGTHS, 4, 0)
    first = list(one)
    assert sorted(first) == list(range(len(LENGTHS)))
    assert list(two) == first
    two.set_epoch(1)
    assert list(two) != first
    assert list(ByLength(LENGTHS, 4, 1)) != first


def test_a_batch_has_rows_of_like_length() -> None:
    order = list(ByLength(LENGTHS, 4, 0))
    batches = [order[start : start + 4] for start in range(0, len(order), 4)]
    mixed = sum(len({LENGTHS[row] < 10 for row in batch}) > 1 for batch in batches)
    assert mixed <= len(batches) // 4  # in chance order nearly all


@pytest.mark.parametrize("recipe", [LABELER, FILTER])
def test_numbers_of_a_base_that_cannot_be_trained_are_not_offered(recipe: Recipe[Any, Any]) -> None:
    said = "there is no preset 'official'; the presets of this recipe are minilm"
    with pytest.raises(ConfigurationError, match=said):
        read_settings(LabelSettings, recipe.presets, preset="official")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"model_type": "deberta-v2"}', "is of type 'deberta-v2', and this recipe trains"),
        ("{}", "has no config.json that names its model_type"),
        ("", "has no config.json that names its model_type"),
    ],
)
def test_a_base_that_is_no_bert_is_refused(tmp_path: Path, config: str, said: str) -> None:
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=said):
        open_network(LabelSettings(base=str(tmp_path)))


def test_only_a_labeler_has_tags() -> None:
    assert heads_of(LabelerSettings(tags=2, pool="mean")).tags == 2
    assert heads_of(LabelSettings()).tags == 0


def test_a_base_that_is_not_here_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"base: nowhere.* is missing"):
        open_tokenizer(LabelSettings(base="nowhere"))
