"""`train labeler`: EfficientRAG's tags and words (METHODS.md §4.5), on MiniLM or another BERT.

The paper trains DeBERTa-v3-large, which this recipe does not, so there is no preset of its numbers:
a learning rate of 5e-6 for 304 M parameters says nothing of a small BERT's. `minilm` is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from service.workshop.encoders.dataset import Labelled, labeler_input
from service.workshop.encoders.fitting import (
    LabelerSettings,
    fit_network,
    outputs_of,
)
from service.workshop.encoders.network import LabelNetwork
from service.workshop.encoders.scores import labeler_scores
from service.workshop.encoders.smoke import write_smoke_rows
from service.workshop.facts.labels import LabelerRow
from service.workshop.recipes.data import read_data
from service.workshop.recipes.recipe import Outcome, Recipe, Run, Score, TrainingData

PRESETS: dict[str, dict[str, Any]] = {
    "minilm": {
        "learning_rate": 2e-4, "batch": 16, "rows_at_once": 16, "epochs": 1, "warm_up": 0.06,
        "weight_decay": 0.01, "schedule": "linear", "longest": 384, "precision": "bf16",
    },
}  # fmt: skip


def fit_labeler(settings: LabelerSettings, data: TrainingData[LabelerRow], run: Run) -> Outcome:
    def encode(tokenizer: Any, row: LabelerRow) -> Labelled:
        return labeler_input(tokenizer, row, settings.longest, settings.tags)

    measure = partial(score, at_once=settings.rows_at_once)
    return fit_network("labeler", settings, data, run, encode, measure)


def score(network: LabelNetwork, rows: Sequence[Labelled], at_once: int) -> dict[str, Score]:
    """Of the tags over all rows, of the words over those that serve."""
    found = labeler_scores(outputs_of(network, rows, at_once))
    share = max(Counter(row.tag for row in rows).values()) / len(rows)
    chance = {"tag_accuracy": share, "tag_macro_f1": 1 / 3, "token_f1": found.chance}
    return {n: Score(v, chance[n], len(rows)) for n, v in found.values.items()}


def smoke(folder: Path) -> LabelerSettings:
    train, held_out = write_smoke_rows(folder, "labeler")
    return LabelerSettings(
        data=(train,), held_out=(held_out,), steps=140, batch=16, rows_at_once=16,
        learning_rate=3e-4, dropout=0, log_every=4, save_every=40, device="cpu",
    )  # fmt: skip


RECIPE: Recipe[LabelerSettings, LabelerRow] = Recipe(
    name="labeler",
    settings=LabelerSettings,
    presets=PRESETS,
    read=lambda settings: read_data(LabelerRow, settings),
    fit=fit_labeler,
    smoke=smoke,
)
