"""A loaded checkpoint: tokenizer and model, and the forward pass.

Inputs of a model: `input_ids`, `attention_mask` and `token_type_ids`, int64 of (inputs, pieces).
Outputs: `token_logits`, float of (inputs, pieces, 2), and of a labeler `tag_logits`, (inputs,
tags).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

from service.core.errors import ConfigurationError
from service.core.onnx import open_onnx
from service.encoders.checkpoint import MODEL_FILE, TOKENIZER_FILE, CheckpointCard, is_saved
from service.encoders.in_process import (
    Gone,
    file_tokenizer,
    minilm_tokenizer,
    packs,
    padded_rows,
)
from service.encoders.inputs import Encoded
from service.encoders.torch_runtime import open_torch

INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
TOKENS: Final = "token_logits"
TAGS: Final = "tag_logits"


class Output(NamedTuple):
    """The output for one input: the margin of each piece, as in `marked_text`, and the probability
    of each tag (none for a filter)."""

    margins: list[float]
    tags: list[float]


@dataclass(frozen=True, slots=True)
class Session:
    card: CheckpointCard
    tokenizer: Any
    runtime: Any

    def forward(self, inputs: Sequence[Encoded], gone: Event) -> list[Output]:
        """Return the outputs in the order of the inputs. Raises Gone between two passes."""
        outputs: dict[int, Output] = {}
        for pack in packs([len(each.ids) for each in inputs]):
            if gone.is_set():
                raise Gone
            made = self._pass([inputs[index] for index in pack])
            outputs |= zip(pack, made, strict=True)
        return [outputs[index] for index in range(len(inputs))]

    def _pass(self, inputs: Sequence[Encoded]) -> list[Output]:
        import numpy as np  # noqa: PLC0415

        fields = (
            [each.ids for each in inputs],
            [[1] * len(each.ids) for each in inputs],
            [each.types for each in inputs],
        )
        feed = dict(zip(INPUTS, map(padded_rows, fields), strict=True))
        wanted = [TOKENS, TAGS] if self.card.kind == "labeler" else [TOKENS]
        tokens, *tags = self.runtime.run(wanted, feed)
        if not (np.isfinite(tokens).all() and all(np.isfinite(each).all() for each in tags)):
            raise ValueError("its outputs are not all finite")
        margins = (tokens[..., 1] - tokens[..., 0]).tolist()
        shares = _softmax(tags[0]).tolist() if tags else [[]] * len(inputs)
        return [Output(*pair) for pair in zip(margins, shares, strict=True)]


def _softmax(logits: Any) -> Any:
    import numpy as np  # noqa: PLC0415

    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def load_session(folder: Path, card: CheckpointCard, threads: int) -> Session:
    """Load tokenizer and model, which takes about a second. Raises ConfigurationError naming the
    file."""
    try:
        tokenizer = (
            minilm_tokenizer()
            if card.tokenizer == "minilm"
            else file_tokenizer(folder / TOKENIZER_FILE)
        )
    except Exception as error:  # the library raises nothing narrower
        raise ConfigurationError(f"{folder / TOKENIZER_FILE} cannot be read: {error}") from None
    if absent := [mark for mark in ("[CLS]", "[SEP]") if tokenizer.token_to_id(mark) is None]:
        raise ConfigurationError(f"{folder / TOKENIZER_FILE} has no token {absent[0]}")
    runtime = (open_torch if is_saved(folder) else _open_onnx)(folder, card, threads)
    return Session(card, tokenizer, runtime)


def _open_onnx(folder: Path, card: CheckpointCard, threads: int) -> Any:
    path = folder / MODEL_FILE
    try:
        runtime = open_onnx(path, threads)
    except Exception as error:  # the library's errors have no common base
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"{path} is not a model that ONNX Runtime can open ({reason}); copy or export it again"
        ) from None
    if problem := _mismatch(runtime, card):
        raise ConfigurationError(f"{path}: {problem}; export it again")
    return runtime


def _mismatch(runtime: Any, card: CheckpointCard) -> str | None:
    """Return how the model's inputs and outputs differ from its card, or None."""
    taken = {each.name for each in runtime.get_inputs()}
    given = {each.name: each.shape for each in runtime.get_outputs()}
    wanted = {TOKENS, TAGS} if card.kind == "labeler" else {TOKENS}
    if taken != set(INPUTS) or not wanted <= set(given):
        return f"its inputs are {sorted(taken)} and its outputs {sorted(given)}"
    if card.kind == "labeler" and given[TAGS][-1] != card.tags:
        return f"it has {given[TAGS][-1]} tags, but its card says {card.tags}"
    return None
