"""Checkpoints of labeler and filter: a folder of `checkpoint.json`, a model, a tokenizer.

Inputs of a model: `input_ids`, `attention_mask` and `token_type_ids`, int64 of (inputs, pieces).
Outputs: `token_logits`, float of (inputs, pieces, 2), and of a labeler `tag_logits`, (inputs,
tags).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from service.core.domain import Model
from service.core.errors import ConfigurationError
from service.encoders import in_process
from service.text.words import WORD_RULE

CARD_FILE: Final = "checkpoint.json"
MODEL_FILE: Final = "model.onnx"
TOKENIZER_FILE: Final = "tokenizer.json"
INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
TOKENS: Final = "token_logits"
TAGS: Final = "tag_logits"
Kind = Literal["labeler", "filter"]
Run = Callable[[Mapping[str, Any]], list[Any]]  # from arrays by name to the outputs of the kind


class CheckpointCard(Model):
    """The content of `checkpoint.json`.

    `tags` is the number of tags of a labeler. `pool` is the input of its tag head: the first token,
    or the mean of all tokens (METHODS.md §4.4 #1). `max_pieces` is the maximum length of an input,
    in training and when serving. `words` is the rule that split the words of the training data.
    `tokenizer` is `minilm` for the tokenizer in this package, or `file` for a `tokenizer.json` in
    the folder. `scores` and `training` (settings, and a hash of the data) are for information.
    """

    format: Literal[1] = 1
    kind: Kind
    tags: Literal[2, 3] | None = None
    max_pieces: int = Field(ge=16, le=4096)
    pool: Literal["cls", "mean"] = "cls"
    words: str = WORD_RULE
    tokenizer: Literal["minilm", "file"] = "minilm"
    base_model: str
    scores: dict[str, float] = {}
    training: dict[str, Any] = {}


def read_card(folder: Path, kind: Kind) -> CheckpointCard:
    """Read the card of a checkpoint, and check the files without loading the model.

    Raises ConfigurationError, which names the file and the remedy.
    """
    card = in_process.read_card(CheckpointCard, kind, folder, (CARD_FILE,))
    if problem := _problem(folder, kind, card):
        raise ConfigurationError(f"{folder / CARD_FILE}: {problem}")
    return card


def _problem(folder: Path, kind: Kind, card: CheckpointCard) -> str | None:
    if card.kind != kind:
        return f"it is a {card.kind}, but a {kind} is needed; copy a {kind} there"
    if kind == "labeler" and card.tags is None:
        return "the card of a labeler must state its number of tags, 2 or 3"
    if card.words != WORD_RULE:
        return (
            f"it was trained with the word rule {card.words!r}, but this version uses "
            f"{WORD_RULE!r}; train it again: revelator train {kind}"
        )
    needed = [MODEL_FILE, *([TOKENIZER_FILE] if card.tokenizer == "file" else [])]
    if absent := [name for name in needed if not (folder / name).is_file()]:
        return f"{' and '.join(absent)} is missing beside it; copy the whole folder"
    return None


def open_model(folder: Path, card: CheckpointCard, threads: int) -> Run:
    """Open the model, which takes about a second. Raises ConfigurationError naming the file."""
    path, wanted = folder / MODEL_FILE, [TOKENS, TAGS] if card.kind == "labeler" else [TOKENS]
    session = in_process.open_model(path, threads)
    taken = {tensor.name for tensor in session.get_inputs()}
    given = {tensor.name: tensor.shape for tensor in session.get_outputs()}
    problem = None
    if taken != set(INPUTS) or not set(wanted) <= set(given):
        problem = f"its inputs are {sorted(taken)} and its outputs {sorted(given)}"
    elif card.kind == "labeler" and given[TAGS][-1] != card.tags:
        problem = f"it has {given[TAGS][-1]} tags, but its card says {card.tags}"
    if problem:
        raise ConfigurationError(f"{path}: {problem}; export it again")
    return partial(session.run, wanted)
