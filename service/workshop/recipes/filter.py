"""`train filter`: words of EfficientRAG's next query (METHODS.md §4.5), on MiniLM or another BERT.

The paper trains DeBERTa-v3-large, which this recipe does not, so there is no preset of its numbers.
`minilm` is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.workshop.encoders.dataset import Labelled, filter_input
from service.workshop.encoders.fitting import (
    LabelSettings,
    fit_network,
    outputs_of,
)
from service.workshop.encoders.network import LabelNetwork
from service.workshop.encoders.scores import filter_scores
from service.workshop.encoders.smoke import write_smoke_rows
from service.workshop.facts.labels import FilterRow
from service.workshop.recipes.data import read_data
from service.workshop.recipes.recipe import Outcome, Recipe, Run, Score, TrainingData

PRESETS: dict[str, dict[str, Any]] = {
    "minilm": {
        "learning_rate": 3e-4, "batch": 16, "rows_at_once": 16, "epochs": 3, "warm_up": 0.06,
        "weight_decay": 0.01, "schedule": "linear", "longest": 256, "precision": "bf16",
    },
}  # fmt: skip


def fit_filter(settings: LabelSettings, data: TrainingData[FilterRow], run: Run) -> Outcome:
    def encode(tokenizer: Any, row: FilterRow) -> Labelled:
        return filter_input(tokenizer, row, settings.longest)

    def score(network: LabelNetwork, rows: Sequence[Labelled]) -> dict[str, Score]:
        found = filter_scores(outputs_of(network, rows, settings.rows_at_once))
        chance = {"exact_query": 0.0, "token_f1": found.chance}
        return {n: Score(v, chance[n], len(rows)) for n, v in found.values.items()}

    return fit_network("filter", settings, data, run, encode, score)


def smoke(folder: Path) -> LabelSettings:
    train, held_out = write_smoke_rows(folder, "filter")
    return LabelSettings(
        data=(train,), held_out=(held_out,), steps=70, batch=16, rows_at_once=16, longest=256,
        learning_rate=3e-4, log_every=4, save_every=40, device="cpu",
    )  # fmt: skip


RECIPE: Recipe[LabelSettings, FilterRow] = Recipe(
    name="filter",
    settings=LabelSettings,
    presets=PRESETS,
    read=lambda settings: read_data(FilterRow, settings),
    fit=fit_filter,
    smoke=smoke,
)
