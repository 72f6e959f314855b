"""The order of rows in training, and what settings say of the heads."""

from __future__ import annotations

import pytest

pytest.importorskip("accelerate")

from service.errors import ConfigurationError
from service.training.labelling.fitting import (
    ByLength,
    LabelerSettings,
    LabelSettings,
    heads_of,
    open_tokenizer,
)
from service.training.recipes import filter as filter_recipe
from service.training.recipes import labeler
from service.training.recipes.settings import read_settings

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


def test_the_papers_hyper_parameters() -> None:
    published = read_settings(LabelerSettings, labeler.PRESETS, preset="official")
    assert (published.learning_rate, published.batch, published.epochs) == (5e-6, 32, 2)
    assert (published.warm_up, published.weight_decay, published.longest) == (200, 0.01, 384)
    filtering = read_settings(LabelSettings, filter_recipe.PRESETS, preset="official")
    assert (filtering.learning_rate, filtering.longest) == (1e-5, 256)


def test_only_a_labeler_has_tags() -> None:
    assert heads_of(LabelerSettings(tags=2, pool="mean")).tags == 2
    assert heads_of(LabelSettings()).tags == 0


def test_a_base_that_is_not_here_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"base: nowhere.* is missing"):
        open_tokenizer(LabelSettings(base="nowhere"))
