"""Taps the queries and keys of a model's last layer, whatever its architecture calls them.

Our attention function wraps transformers' `sdpa` and passes queries and keys, rotated and joined
with the cache, to the tap of the forward pass (`tap=…`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from service.engines.attention_torch import attention_rows, entropies, rows_per_block
from service.engines.batch.rows import ReadingRow, SignalRow
from service.engines.signals import Scoring

IMPLEMENTATION = "revelator_tapped_sdpa"


class Tap(Protocol):
    layer: int

    def see(self, query: Tensor, key: Tensor, scale: float) -> None:
        """Receive queries (batch, heads, rows, size) and keys (batch, kv_heads, positions,
        size).
        """


class RowTap:
    """The tap of a pass over a batch: (row, its place in the batch, its query, its first key)."""

    def __init__(self, layer: int, places: Sequence[tuple[SignalRow, int, int, int]]) -> None:
        self.layer = layer
        self._places = places

    def see(self, query: Tensor, key: Tensor, scale: float) -> None:
        for row, number, place, first in self._places:
            keys = key[number, :, first : first + row.length].transpose(1, 2)
            weights = attention_rows(query[None, number, :, place], keys, row.length - 1, scale)
            row.see(weights[:, 0].cpu().numpy())


def make_tappable(network: Any) -> str | None:
    """Install the attention function. Returns the reason why the model has no signals, or None."""
    config = network.config.get_text_config(decoder=True)
    if config._attn_implementation != "sdpa":
        return f"its attention implementation is {config._attn_implementation!r}, not sdpa"
    kinds = getattr(config, "layer_types", None) or []
    if (kinds and kinds[-1] != "full_attention") or (not kinds and _slides(config)):
        return "its last layer does not attend to the whole context"
    AttentionInterface.register(IMPLEMENTATION, _attend)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
    network.set_attn_implementation(IMPLEMENTATION)
    return None


def last_layer(network: Any) -> int:
    return int(network.config.get_text_config(decoder=True).num_hidden_layers) - 1


def _slides(config: Any) -> bool:
    wanted = getattr(config, "use_sliding_window", True)
    return bool(wanted and getattr(config, "sliding_window", None))


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    tap: Tap | None = None,
    **options: Any,
) -> Any:
    if tap is not None and module.layer_idx == tap.layer:
        tap.see(query, key, options.get("scaling") or query.shape[-1] ** -0.5)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


class ReadingTap:
    """The tap of a pass over several texts, padded on the right."""

    def __init__(self, layer: int, readings: Sequence[ReadingRow]) -> None:
        self.layer = layer
        self._readings = readings

    def see(self, query: Tensor, key: Tensor, scale: float) -> None:
        for number, reading in enumerate(self._readings):
            length = len(reading.ids)
            size = rows_per_block(query.shape[1], length)
            for first in range(0, length, size):
                end = min(first + size, length)
                block = query[number, :, first:end].transpose(0, 1)
                keys = key[number, :, :end].transpose(1, 2)
                reading.see(attention_rows(block, keys, first, scale).cpu().numpy())


def score(network: Any, readings: Sequence[ReadingRow]) -> list[Scoring]:
    """Return the results in the order of `readings`."""
    longest = max(len(reading.ids) for reading in readings)
    ids = torch.zeros(len(readings), longest, dtype=torch.long)
    for number, reading in enumerate(readings):
        ids[number, : len(reading.ids)] = torch.tensor(reading.ids)
    with_numbers = any(reading.job.request.entropies for reading in readings)
    output = network(
        input_ids=ids.to(network.device),
        use_cache=False,
        logits_to_keep=0 if with_numbers else 1,
        tap=ReadingTap(last_layer(network), readings),
    )
    return [
        reading.result(_numbers(output.logits[n], reading) if with_numbers else None)
        for n, reading in enumerate(readings)
    ]


def _numbers(logits: Tensor, reading: ReadingRow) -> list[list[float]] | None:
    if not reading.job.request.entropies:
        return None
    targets = torch.tensor(reading.ids[1:], device=logits.device)
    if not len(targets):
        return [[], []]
    found: list[list[float]] = entropies(logits[: len(targets)], targets).tolist()
    return found
