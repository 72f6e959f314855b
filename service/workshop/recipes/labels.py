"""`train labeler` and `train filter`: EfficientRAG's encoders (METHODS.md §4.5) on a small BERT.

The paper trains DeBERTa-v3-large. These recipes do not, so no preset uses its numbers: a learning
rate of 5e-6 for 304 M parameters is not suitable for a small BERT. The values of the preset
`minilm` are our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from service.workshop.encoders.network import (
    Labelled,
    LabelNetwork,
    filter_input,
    labeler_input,
)
from service.workshop.encoders.trainer import (
    LabelerSettings,
    LabelSettings,
    filter_scores,
    fit_network,
    labeler_scores,
    outputs_of,
)
from service.workshop.facts.rows import FilterRow, LabelerRow
from service.workshop.recipes.recipe import (
    Recipe,
    Score,
    TrainingData,
    TrainingResult,
    TrainingRun,
    read_data,
)
from service.workshop.recipes.smoke import filter_row, labeler_row, write_rows

SHARED: dict[str, Any] = {
    "batch": 16, "rows_at_once": 16, "warm_up": 0.06, "weight_decay": 0.01, "schedule": "linear",
    "precision": "bf16",
}  # fmt: skip
SMOKE: dict[str, Any] = {
    "batch": 16, "rows_at_once": 16, "learning_rate": 3e-4, "log_every": 4, "save_every": 20,
    "device": "cpu",
}  # fmt: skip


def fit_labeler(
    settings: LabelerSettings, data: TrainingData[LabelerRow], run: TrainingRun
) -> TrainingResult:
    def encode(tokenizer: Any, row: LabelerRow) -> Labelled:
        return labeler_input(tokenizer, row, settings.longest, settings.tags)

    measure = partial(labeler_score, at_once=settings.rows_at_once)
    return fit_network("labeler", settings, data, run, encode, measure)


def labeler_score(
    network: LabelNetwork, rows: Sequence[Labelled], at_once: int
) -> dict[str, Score]:
    """Return the scores of the tags over all rows, and those of the words over rows with a useful
    passage."""
    found = labeler_scores(outputs_of(network, rows, at_once))
    share = max(Counter(row.tag for row in rows).values()) / len(rows)
    chance = {"tag_accuracy": share, "tag_macro_f1": 1 / 3, "token_f1": found.chance}
    return {n: Score(v, chance[n], len(rows)) for n, v in found.values.items()}


def fit_filter(
    settings: LabelSettings, data: TrainingData[FilterRow], run: TrainingRun
) -> TrainingResult:
    def encode(tokenizer: Any, row: FilterRow) -> Labelled:
        return filter_input(tokenizer, row, settings.longest)

    def score(network: LabelNetwork, rows: Sequence[Labelled]) -> dict[str, Score]:
        found = filter_scores(outputs_of(network, rows, settings.rows_at_once))
        chance = {"exact_query": 0.0, "token_f1": found.chance}
        return {n: Score(v, chance[n], len(rows)) for n, v in found.values.items()}

    return fit_network("filter", settings, data, run, encode, score)


def labeler_smoke(folder: Path) -> LabelerSettings:
    train, held_out = write_rows(folder, labeler_row, 600)
    return LabelerSettings(data=(train,), held_out=(held_out,), steps=60, dropout=0, **SMOKE)


def filter_smoke(folder: Path) -> LabelSettings:
    train, held_out = write_rows(folder, filter_row, 600)
    return LabelSettings(data=(train,), held_out=(held_out,), steps=40, longest=256, **SMOKE)


LABELER: Recipe[LabelerSettings, LabelerRow] = Recipe(
    name="labeler",
    settings=LabelerSettings,
    presets={"minilm": SHARED | {"learning_rate": 2e-4, "epochs": 1, "longest": 384}},
    read=partial(read_data, LabelerRow),
    fit=fit_labeler,
    smoke=labeler_smoke,
)
FILTER: Recipe[LabelSettings, FilterRow] = Recipe(
    name="filter",
    settings=LabelSettings,
    presets={"minilm": SHARED | {"learning_rate": 3e-4, "epochs": 3, "longest": 256}},
    read=partial(read_data, FilterRow),
    fit=fit_filter,
    smoke=filter_smoke,
)
