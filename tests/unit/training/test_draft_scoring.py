"""Entropy as a detector of facts that were not given."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import math

import pytest

from tests.conftest import need

torch = need("torch")
transformers = need("transformers")

from service.training.corpora import Passage
from service.training.draft_scoring import Sureness, auc, histogram
from service.training.network import build_model, model_config
from service.training.scoring import Scorer
from service.training.tokenizer import train_tokenizer


def test_area_under_the_curve() -> None:
    assert auc([1.0, 2.0], [3.0, 4.0]) == 1.0
    assert auc([3.0, 4.0], [1.0, 2.0]) == 0.0
    assert auc([1.0, 3.0], [2.0, 3.0]) == (1 + 1 + 0 + 0.5) / 4


def test_histogram_counts_each_fact_once() -> None:
    rows = [Sureness(0.1, 4.0, 6.0)] * 3 + [Sureness(1.2, 4.0, 6.0)]
    lines = histogram(rows, width=4).splitlines()
    assert lines[1] == "0.00-0.25 ###"
    assert lines[4] == "1.00-1.50 #"
    assert lines[9].split() == ["5.00-9.00", "####"]


def test_entropies_are_those_of_the_rows_before(passages: list[Passage]) -> None:
    tokenizer = train_tokenizer([p.text for p in passages], 400)
    model = build_model(model_config(tokenizer.get_vocab_size(), layers=1, width=64))
    ids = [1, 270, 271, 272]
    found = Scorer(model, tokenizer).entropies(ids, 2)
    share = model(torch.tensor([ids])).logits[0].softmax(-1)
    wanted = [float(-(row * row.log()).sum().detach()) for row in share[1:3]]
    assert found == pytest.approx(wanted, abs=1e-3)
    assert max(found) <= math.log(tokenizer.get_vocab_size())
