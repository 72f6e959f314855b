"""One forward pass over texts that are only read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from service.engines.batching.reading import Reading
from service.engines.signals import Scoring
from service.engines.transformers.taps import last_layer
from service.vllm_plugin.attention import attention_rows, rows_per_block
from service.vllm_plugin.entropy import entropies


class ReadingTap:
    """The tap of a pass over several texts, padded on the right."""

    def __init__(self, layer: int, readings: Sequence[Reading]) -> None:
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


def score(network: Any, readings: Sequence[Reading]) -> list[Scoring]:
    """Results in the order of `readings`."""
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


def _numbers(logits: Tensor, reading: Reading) -> list[list[float]] | None:
    if not reading.job.request.entropies:
        return None
    targets = torch.tensor(reading.ids[1:], device=logits.device)
    if not len(targets):
        return [[], []]
    found: list[list[float]] = entropies(logits[: len(targets)], targets).tolist()
    return found
