"""Reads texts by prefill alone: entropies, attention maxima, and rows where they are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from service.errors import EngineFailure
from service.generation.base import TokenUsage
from service.generation.draft_text import place_tokens, wanted_tokens
from service.generation.encoding import PromptEncoder
from service.generation.local.jobs import ScoreJob
from service.generation.local.taps import last_layer
from service.generation.signals import AttentionRow, ScoredToken, Scoring, Span
from service.generation.vllm_plugin.attention import Maxima, attention_rows, rows_per_block
from service.generation.vllm_plugin.entropy import entropies


@dataclass(slots=True)
class Reading:
    """One text under way; `wanted` are the tokens whose rows are asked for."""

    job: ScoreJob
    ids: list[int]
    spans: list[Span]
    wanted: frozenset[int]
    rows: list[AttentionRow] = field(default_factory=list)
    maxima: Maxima | None = None

    def see(self, query: Tensor, keys: Tensor, scale: float) -> None:
        """Take all rows: queries (heads, rows, size), keys (kv_heads, rows, size)."""
        heads, length = query.shape[0], len(self.ids)
        self.maxima = Maxima(heads, length, query.device)
        size = rows_per_block(heads, length)
        for first in range(0, length, size):
            end = min(first + size, length)
            block = query[:, first:end].transpose(0, 1)
            weights = attention_rows(block, keys[:, :end].transpose(1, 2), first, scale)
            self.maxima.fold(weights)
            for row in range(first, end):
                if row + 1 in self.wanted:
                    mean = weights[:, row - first, : row + 1].mean(dim=0)
                    self.rows.append(AttentionRow(row + 1, tuple(mean.tolist())))

    def result(self, numbers: list[list[float]] | None) -> Scoring:
        """`numbers`: entropies and log-probabilities of all tokens but the first."""
        if self.maxima is None:
            raise EngineFailure("the model's last layer did not show its attention")
        whole, later = self.maxima.means().tolist()
        tokens = tuple(
            ScoredToken(
                token,
                self.spans[n],
                numbers[0][n - 1] if numbers and n else None,
                numbers[1][n - 1] if numbers and n else None,
                whole[n],
                later[n],
            )
            for n, token in enumerate(self.ids)
        )
        return Scoring(tokens, tuple(self.rows), TokenUsage(len(self.ids), 0))


class ReadingTap:
    """The tap of a pass over several texts, padded on the right."""

    def __init__(self, layer: int, readings: Sequence[Reading]) -> None:
        self.layer = layer
        self._readings = readings

    def see(self, query: Tensor, key: Tensor, scale: float) -> None:
        for number, reading in enumerate(self._readings):
            length = len(reading.ids)
            reading.see(query[number, :, :length], key[number, :, :length], scale)


def open_reading(encoder: PromptEncoder, job: ScoreJob, most: int) -> Reading:
    """Raises EngineFailure for a text longer than `most` tokens."""
    ids, spans = place_tokens(encoder, job.request)
    if not 0 < len(ids) <= most:
        raise EngineFailure(f"a text of {len(ids)} tokens cannot be scored; 1 to {most} can")
    wanted = frozenset(wanted_tokens(spans, job.request))
    return Reading(job, ids, spans, wanted)


def score(network: Any, readings: Sequence[Reading]) -> list[Scoring]:
    """One forward pass over all of them."""
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
