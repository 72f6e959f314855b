"""How well a network's labels agree with the rows'. All between 0 and 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from service.workshop.encoders.network import IGNORED, TERMINATE

Batch = tuple[dict[str, Tensor], dict[str, Tensor]]  # what is read, and what is made of it
Flags = NDArray[np.bool_]


class Found(NamedTuple):
    """Scores by name; `chance` is the token F1 of marking every piece."""

    values: dict[str, float]
    chance: float


def f1(predicted: Flags, gold: Flags) -> float:
    """Of what is marked; 0 where neither marks anything."""
    both = int((predicted & gold).sum())
    total = int(predicted.sum()) + int(gold.sum())
    return 2 * both / total if total else 0.0


def labeler_scores(batches: Iterable[Batch]) -> Found:
    """Accuracy and macro-F1 of the tags, F1 of the pieces of rows that serve by their gold tag."""
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
    return Found(values, f1(np.ones_like(words), words))


def filter_scores(batches: Iterable[Batch]) -> Found:
    """The share of rows with every piece right, which is the exact next query; F1 of the pieces."""
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
    return Found(values, f1(np.ones_like(words), words))
