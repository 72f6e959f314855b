"""Opens the model of a checkpoint of labeler or filter, with ONNX Runtime or with torch.

Inputs of a model: `input_ids`, `attention_mask` and `token_type_ids`, int64 of (inputs, pieces).
Outputs: `token_logits`, float of (inputs, pieces, 2), and of a labeler `tag_logits`, (inputs,
tags).

Torch runs what transformers saves of any encoder that it supports, with heads of the names in the
official code: `pooler.dense`, `sequence_classifier` and `token_classifier` for a labeler,
`classifier` for a filter. It uses a GPU if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from service.core.errors import ConfigurationError
from service.core.offline import prepare_torch
from service.encoders.checkpoint import (
    CONFIG_FILE,
    MODEL_FILE,
    WEIGHTS_FILE,
    CheckpointCard,
    is_saved,
)
from service.encoders.in_process import open_model

INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
TOKENS: Final = "token_logits"
TAGS: Final = "tag_logits"
POOLER: Final = "pooler.dense"
TAG_HEAD: Final = "sequence_classifier"
TOKEN_HEADS: Final = {"labeler": "token_classifier", "filter": "classifier"}
_UNUSED: Final = "pooler."  # weights of the encoder that the heads replace

Run = Callable[[Mapping[str, Any]], list[Any]]  # from arrays by name to the outputs of the kind


def outputs_of(card: CheckpointCard) -> list[str]:
    return [TOKENS, TAGS] if card.kind == "labeler" else [TOKENS]


def open_runtime(folder: Path, card: CheckpointCard, threads: int) -> Run:
    """Open the model, which takes about a second. Raises ConfigurationError naming the file."""
    return (_open_torch if is_saved(folder) else _open_onnx)(folder, card, threads)


def _open_onnx(folder: Path, card: CheckpointCard, threads: int) -> Run:
    path, wanted = folder / MODEL_FILE, outputs_of(card)
    session = open_model(path, threads)
    taken = {each.name for each in session.get_inputs()}
    given = {each.name: each.shape for each in session.get_outputs()}
    problem = None
    if taken != set(INPUTS) or not set(wanted) <= set(given):
        problem = f"its inputs are {sorted(taken)} and its outputs {sorted(given)}"
    elif card.kind == "labeler" and given[TAGS][-1] != card.tags:
        problem = f"it has {given[TAGS][-1]} tags, but its card says {card.tags}"
    if problem:
        raise ConfigurationError(f"{path}: {problem}; export it again")
    return partial(session.run, wanted)


def _open_torch(folder: Path, card: CheckpointCard, threads: int) -> Run:
    prepare_torch()
    import torch  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415
    from transformers import AutoConfig, AutoModel  # noqa: PLC0415
    from transformers.activations import ACT2FN  # noqa: PLC0415

    auto: Any = AutoModel
    path = folder / WEIGHTS_FILE
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        weights = {name: value.float() for name, value in load_file(path, device).items()}
        config: Any = AutoConfig.from_pretrained(folder)
        encoder = auto.from_config(config)
    except Exception as error:  # the libraries' errors have no common base
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"{folder}: {CONFIG_FILE} or {WEIGHTS_FILE} cannot be read ({reason}); copy them again"
        ) from None
    heads = _split(path, card, encoder, weights)
    encoder = encoder.to(device).eval()
    activation = ACT2FN[getattr(config, "pooler_hidden_act", "gelu")]

    def linear(value: Any, head: str) -> Any:
        return value @ heads[f"{head}.weight"].T + heads[f"{head}.bias"]

    def run(feed: Mapping[str, Any]) -> list[Any]:
        torch.set_num_threads(threads)
        inputs = {name: torch.from_numpy(array).to(device) for name, array in feed.items()}
        with torch.inference_mode():
            hidden = encoder(**inputs).last_hidden_state
            found = [linear(hidden, TOKEN_HEADS[card.kind])]
            if card.kind == "labeler":
                pooled = hidden[:, 0]
                if card.pool == "mean":
                    counted = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
                    pooled = (hidden * counted).sum(1) / counted.sum(1)
                found.append(linear(activation(linear(pooled, POOLER)), TAG_HEAD))
        return [each.cpu().numpy() for each in found]

    return run


def _split(path: Path, card: CheckpointCard, encoder: Any, weights: Mapping[str, Any]) -> Any:
    """Load the encoder; the remaining weights are the heads."""
    prefix = f"{encoder.base_model_prefix}."
    own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    heads = {name: value for name, value in weights.items() if not name.startswith(prefix)}
    lacking = encoder.load_state_dict(own, strict=False).missing_keys
    absent = [f"{prefix}{name}" for name in lacking if not name.startswith(_UNUSED)]
    needed = [TOKEN_HEADS[card.kind], *([POOLER, TAG_HEAD] if card.kind == "labeler" else [])]
    absent += [name for head in needed if (name := f"{head}.weight") not in heads]
    if absent:
        raise ConfigurationError(
            f"{path} is not a {card.kind}: it has no {absent[0]}; save the model that was trained"
        )
    if card.kind == "labeler" and len(heads[f"{TAG_HEAD}.weight"]) != card.tags:
        size = len(heads[f"{TAG_HEAD}.weight"])
        raise ConfigurationError(
            f"{path} has {size} tags, but its card says {card.tags}; correct the card"
        )
    return heads
