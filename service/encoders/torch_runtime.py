"""Runs checkpoints saved by transformers with torch, on a GPU if there is one.

A checkpoint is a folder with `config.json`, `model.safetensors` and `tokenizer.json` of any encoder
that transformers supports, and heads with the names of the official code: `pooler.dense`,
`sequence_classifier` and `token_classifier` for a labeler, `classifier` for a filter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from service.core.errors import ConfigurationError
from service.core.offline import prepare_torch
from service.encoders.checkpoint import CONFIG_FILE, WEIGHTS_FILE, CheckpointCard

POOLER: Final = "pooler.dense"
TAG_HEAD: Final = "sequence_classifier"
TOKEN_HEADS: Final = {"labeler": "token_classifier", "filter": "classifier"}
_UNUSED: Final = "pooler."  # weights of the encoder that the heads replace


@dataclass(frozen=True, slots=True)
class TorchRuntime:
    """Has the interface of an ONNX Runtime session: output names, and input arrays by name."""

    card: CheckpointCard
    encoder: Any
    weights: Mapping[str, Any]
    activation: Any
    threads: int

    def run(self, wanted: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        import torch  # noqa: PLC0415

        torch.set_num_threads(self.threads)
        inputs = {name: torch.from_numpy(array) for name, array in feed.items()}
        inputs = {name: tensor.to(self.encoder.device) for name, tensor in inputs.items()}
        with torch.inference_mode():
            hidden = self.encoder(**inputs).last_hidden_state
            made = {"token_logits": self._linear(hidden, TOKEN_HEADS[self.card.kind])}
            if self.card.kind == "labeler":
                pooled = self._pooled(hidden, inputs["attention_mask"])
                pooled = self.activation(self._linear(pooled, POOLER))
                made["tag_logits"] = self._linear(pooled, TAG_HEAD)
        return [made[name].cpu().numpy() for name in wanted]

    def _pooled(self, hidden: Any, mask: Any) -> Any:
        """Pool (inputs, pieces, size) to (inputs, size)."""
        if self.card.pool == "cls":
            return hidden[:, 0]
        counted = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * counted).sum(1) / counted.sum(1)

    def _linear(self, value: Any, head: str) -> Any:
        return value @ self.weights[f"{head}.weight"].T + self.weights[f"{head}.bias"]


def open_torch(folder: Path, card: CheckpointCard, threads: int) -> TorchRuntime:
    """Load a checkpoint. Raises ConfigurationError naming the file."""
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
    activation = ACT2FN[getattr(config, "pooler_hidden_act", "gelu")]
    return TorchRuntime(card, encoder.to(device).eval(), heads, activation, threads)


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
