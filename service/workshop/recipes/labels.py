"""`train labeler` and `train filter`: EfficientRAG's encoders (METHODS.md §4.5) on a small BERT.

The paper trains DeBERTa-v3-large. These recipes do not, so no preset uses its numbers: a learning
rate of 5e-6 for 304 M parameters is not suitable for a small BERT. The values of the preset
`minilm` are our own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Sampler
from transformers import Trainer, TrainingArguments
from transformers.trainer_pt_utils import get_length_grouped_indices
from transformers.utils import logging as transformers_logging

from service.core.errors import ConfigurationError
from service.encoders.checkpoint import TOKENIZER_FILE, CheckpointCard, Kind
from service.encoders.efficientrag import SERVED
from service.encoders.in_process import file_tokenizer, minilm_tokenizer
from service.workshop.compilation.bert import minilm_folder
from service.workshop.encoders.network import (
    IGNORED,
    TERMINATE,
    HeadSettings,
    Labelled,
    LabelNetwork,
    Pool,
    collate,
    filter_input,
    freeze_embeddings,
    from_base,
    labeler_input,
    write_checkpoint,
)
from service.workshop.facts.rows import FilterRow, LabelerRow
from service.workshop.recipes.recipe import (
    LossPoint,
    Recipe,
    Score,
    TrainerSettings,
    TrainingData,
    TrainingResult,
    TrainingRun,
    read_data,
)
from service.workshop.recipes.smoke import filter_row, labeler_row, write_rows
from service.workshop.recipes.trainer import fit, trainer_arguments

R = TypeVar("R")
MINILM = "all-MiniLM-L6-v2"
SHARED: dict[str, Any] = {
    "batch": 16, "rows_at_once": 16, "warm_up": 0.06, "weight_decay": 0.01, "schedule": "linear",
    "precision": "bf16",
}  # fmt: skip
SMOKE: dict[str, Any] = {
    "batch": 16, "rows_at_once": 16, "learning_rate": 3e-4, "log_every": 4, "save_every": 20,
    "device": "cpu",
}  # fmt: skip


class LabelSettings(TrainerSettings):
    base: str = Field(
        MINILM, description="Encoder: the MiniLM of the package, or the folder of a BERT model."
    )
    longest: int = Field(
        384,
        ge=16,
        description="Maximum number of word pieces of an input. Longer inputs are truncated.",
    )
    freeze_embeddings: bool = Field(True, description="Do not train the token embeddings.")
    dropout: float = Field(0.1, ge=0, lt=1)
    token_weights: tuple[float, float] = Field(
        (1.0, 1.0), description="Weights of plain and of useful tokens in the loss."
    )


class LabelerSettings(LabelSettings):
    tags: Literal[2, 3] = Field(
        3, description="Number of tags. With 2, FINISH becomes CONTINUE, as published."
    )
    pool: Pool = Field("cls", description="Part of the output that the tag is read from.")
    mask: Literal["gold", "predicted"] = Field(
        "gold", description="Tag that masks tokens: the true or the predicted one."
    )


def heads_of(settings: LabelSettings) -> HeadSettings:
    weights = {"dropout": settings.dropout, "token_weights": settings.token_weights}
    if isinstance(settings, LabelerSettings):
        return HeadSettings(tags=settings.tags, pool=settings.pool, mask=settings.mask, **weights)
    return HeadSettings(tags=0, **weights)


def open_tokenizer(settings: LabelSettings) -> Any:
    if settings.base == MINILM:
        return minilm_tokenizer()
    path = Path(settings.base) / TOKENIZER_FILE
    if not path.is_file():
        raise ConfigurationError(f"base: {path} is missing: name a folder with a BERT in it")
    return file_tokenizer(path)


def open_network(settings: LabelSettings) -> LabelNetwork:
    """Open the base encoder with new heads.

    Raises ConfigurationError if the base is missing or is not a BERT.
    """
    folder = minilm_folder() if settings.base == MINILM else Path(settings.base)
    _check_is_bert(folder)
    logging: Any = transformers_logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.manual_seed(settings.seed)
    network = from_base(folder, heads_of(settings))
    if settings.freeze_embeddings:
        freeze_embeddings(network)
    return network


def _check_is_bert(folder: Path) -> None:
    """Raise ConfigurationError for an encoder that is not a BERT.

    Its weights would be ignored silently, and random ones trained.
    """
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigurationError(
            f"base: {folder} has no config.json that names its model_type; name a BERT's folder"
        ) from None
    if kind != "bert":
        raise ConfigurationError(
            f"base: {folder} is of type {kind!r}, and this recipe trains encoders of type 'bert' "
            "only (the paper's DeBERTa-v3-large is not supported); name a BERT's folder"
        )


def fit_network(
    kind: Kind,
    settings: LabelSettings,
    data: TrainingData[R],
    run: TrainingRun,
    encode: Callable[[Any, R], Labelled],
    score: Callable[[LabelNetwork, Sequence[Labelled]], dict[str, Score]],
) -> TrainingResult:
    """Train, score and save a network. `encode` receives the tokenizer and a row."""
    tokenizer = open_tokenizer(settings)
    train, held_out = (
        [encode(tokenizer, row) for row in rows] for rows in (data.train, data.held_out)
    )
    network = open_network(settings)
    losses = train_network(network, train, settings, run)
    if not run.main:
        return TrainingResult(losses)
    scores = score(network, held_out) if held_out else {}
    save(network, kind, settings, data, scores, run)
    return TrainingResult(losses, scores)


def train_network(
    network: LabelNetwork, rows: Sequence[Labelled], settings: LabelSettings, run: TrainingRun
) -> list[LossPoint]:
    arguments = TrainingArguments(
        **trainer_arguments(settings, run),
        remove_unused_columns=False,
        label_names=["token_labels", "tags"],
    )
    trainer = _Trainer(network, arguments, data_collator=collate, train_dataset=rows)
    trainer.order = ByLength([len(row["input_ids"]) for row in rows], settings.batch, settings.seed)
    return fit(trainer, run)


class ByLength(Sampler[int]):
    """Batches rows of similar length to reduce padding.

    Each epoch depends only on the seed and the epoch, so a resumed run gets the same batches.
    """

    def __init__(self, lengths: list[int], batch: int, seed: int) -> None:
        self._lengths, self._batch, self._seed = lengths, batch, seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; the data loader calls this before each one."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        drawn = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        group: Any = get_length_grouped_indices
        return iter(group(self._lengths, self._batch, generator=drawn))


class _Trainer(Trainer):
    order: ByLength

    def _get_train_sampler(self, train_dataset: Any = None) -> ByLength:
        return self.order


def outputs_of(
    network: LabelNetwork, rows: Sequence[Labelled], at_once: int
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Yield each batch with the network's outputs for it, without dropout."""
    network.eval()
    device = next(network.parameters()).device
    for start in range(0, len(rows), at_once):
        part = range(start, min(start + at_once, len(rows)))
        batch = {name: part.to(device) for name, part in collate([rows[n] for n in part]).items()}
        read = ("input_ids", "attention_mask", "token_type_ids")
        with torch.inference_mode():
            yield batch, network(**{name: batch[name] for name in read})


def save(
    network: LabelNetwork,
    kind: Kind,
    settings: LabelSettings,
    data: TrainingData[Any],
    scores: Mapping[str, Score],
    run: TrainingRun,
) -> None:
    """Write the weights to the run's folder, and the files for serving to a subfolder."""
    save_file(network.state_dict(), run.folder / "model.safetensors")
    ours = settings.base == MINILM
    card = CheckpointCard(
        kind=kind,
        tags=settings.tags if isinstance(settings, LabelerSettings) else None,
        pool=settings.pool if isinstance(settings, LabelerSettings) else "cls",
        max_pieces=settings.longest,
        tokenizer="minilm" if ours else "file",
        base_model=settings.base if ours else Path(settings.base).name,
        scores={name: round(score.value, 4) for name, score in scores.items()},
        training={"data_sha256": data.sha256, "rows": len(data.train)}
        | settings.model_dump(mode="json", exclude={"data", "held_out", "base"}),
    )
    write_checkpoint(network, card, run.folder / SERVED)
    if not ours:
        content = (Path(settings.base) / TOKENIZER_FILE).read_bytes()
        (run.folder / SERVED / TOKENIZER_FILE).write_bytes(content)


Batch = tuple[dict[str, Tensor], dict[str, Tensor]]  # the row, and its encoding
Flags = NDArray[np.bool_]


# Scores by name, and the token F1 of marking every piece.
LabelScores = tuple[dict[str, float], float]


def f1(predicted: Flags, gold: Flags) -> float:
    """Return the F1 of the marked pieces, or 0 if neither side marks any."""
    both = int((predicted & gold).sum())
    total = int(predicted.sum()) + int(gold.sum())
    return 2 * both / total if total else 0.0


def labeler_scores(batches: Iterable[Batch]) -> LabelScores:
    """Return the accuracy and macro-F1 of the tags, and the piece F1 on rows whose gold tag is
    useful."""
    tags, judged, marked, useful = [], [], [], []
    for batch, made in batches:
        gold = batch["tags"]
        counted = (gold != TERMINATE).unsqueeze(1) & (batch["token_labels"] != IGNORED)
        tags.append(gold.numpy())
        judged.append(made["tag_logits"].argmax(-1).numpy())
        marked.append((made["token_logits"].argmax(-1) == 1)[counted].numpy())
        useful.append((batch["token_labels"] == 1)[counted].numpy())
    true, seen = np.concatenate(tags), np.concatenate(judged)
    pieces, words = np.concatenate(marked), np.concatenate(useful)
    values = {
        "tag_accuracy": float((seen == true).mean()),
        "tag_macro_f1": float(np.mean([f1(seen == tag, true == tag) for tag in np.unique(true)])),
        "token_f1": f1(pieces, words),
    }
    return values, f1(np.ones_like(words), words)


def filter_scores(batches: Iterable[Batch]) -> LabelScores:
    """Return the share of rows with every piece right (the exact next query), and the pieces'
    F1."""
    exact: list[Any] = []
    marked, useful = [], []
    for batch, made in batches:
        counted = batch["token_labels"] != IGNORED
        kept = (made["token_logits"].argmax(-1) == 1) & counted
        gold = batch["token_labels"] == 1
        exact.append((kept == gold).all(1).numpy())
        marked.append(kept[counted].numpy())
        useful.append(gold[counted].numpy())
    pieces, words = np.concatenate(marked), np.concatenate(useful)
    values = {"exact_query": float(np.concatenate(exact).mean()), "token_f1": f1(pieces, words)}
    return values, f1(np.ones_like(words), words)


# ---- recipes


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
    values, marking = labeler_scores(outputs_of(network, rows, at_once))
    share = max(Counter(row["tags"] for row in rows).values()) / len(rows)
    chance = {"tag_accuracy": share, "tag_macro_f1": 1 / 3, "token_f1": marking}
    return {n: Score(v, chance[n], len(rows)) for n, v in values.items()}


def fit_filter(
    settings: LabelSettings, data: TrainingData[FilterRow], run: TrainingRun
) -> TrainingResult:
    def encode(tokenizer: Any, row: FilterRow) -> Labelled:
        return filter_input(tokenizer, row, settings.longest)

    def score(network: LabelNetwork, rows: Sequence[Labelled]) -> dict[str, Score]:
        values, marking = filter_scores(outputs_of(network, rows, settings.rows_at_once))
        chance = {"exact_query": 0.0, "token_f1": marking}
        return {n: Score(v, chance[n], len(rows)) for n, v in values.items()}

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
