"""A running call that also gives entropies and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from service.generation.base import FinishReason, TokenUsage
from service.generation.encoding import Detokenizer
from service.generation.local.jobs import SignalJob
from service.generation.local.rows import Row
from service.generation.signals import AttentionUpdate, SignalDelta
from service.generation.vllm_plugin.attention import Maxima, attention_rows
from service.generation.vllm_plugin.draft import Draft
from service.generation.vllm_plugin.entropy import entropies


class SignalRow(Row):
    """With attention, a token is sent once its own row, as a query, was computed."""

    def __init__(
        self, job: SignalJob, prompt: list[int], detokenizer: Detokenizer, **options: Any
    ) -> None:
        super().__init__(job, prompt, detokenizer, **options)
        self.signals = job
        self._draft = Draft(detokenizer, job.request.stop, attention=job.attention)
        self._maxima: Maxima | None = None
        self._means = torch.zeros(2, 0)

    @property
    def is_plain(self) -> bool:
        return False

    def choose(self, logits: Tensor) -> int:
        entropy, logprob = entropies(logits[None])[:, 0].tolist()
        self._draft.add_signals([(entropy, logprob)], [])
        return int(logits.argmax())

    def see(self, query: Tensor, keys: Tensor, scale: float) -> None:
        """Take this row's newest query (heads, size) over keys (kv_heads, positions, size)."""
        positions = keys.shape[1]
        weights = attention_rows(query[None], keys.transpose(1, 2), positions - 1, scale)[:, 0]
        self.signals.rows.append(weights.mean(dim=0))
        prompt = len(self.prompt)
        if positions > prompt:
            if self._maxima is None:
                self._maxima = Maxima(weights.shape[0], self._limit, weights.device)
            self._maxima.fold_one(weights[:, prompt:])
            self._draft.add_signals([], [self._changes(self._maxima.means().cpu())])

    def _changes(self, means: Tensor) -> tuple[AttentionUpdate, ...]:
        known = self._means.shape[1]
        changed = (means[:, :known] != self._means).any(dim=0).nonzero().flatten().tolist()
        self._means = means
        maxima, later = means.tolist()
        keys = [*changed, *range(known, means.shape[1])]
        return tuple(AttentionUpdate(key, maxima[key], later[key]) for key in keys)

    def take(self, token: int) -> SignalDelta | None:  # type: ignore[override]
        self.token = token
        self.written += 1
        ends: FinishReason | None = "length" if self.written >= self._limit else None
        self._draft.add_tokens([token], "stop" if token in self._ends else ends)
        tokens, finish = tuple(self._draft.take()), self._draft.finish
        usage = TokenUsage(len(self.prompt), self.written) if finish else None
        return SignalDelta(tokens, finish, usage) if tokens or finish else None


class RowTap:
    """The tap of a pass over a batch: (row, its place in the batch, its query, its first key)."""

    def __init__(self, layer: int, places: Sequence[tuple[SignalRow, int, int, int]]) -> None:
        self.layer = layer
        self._places = places

    def see(self, query: Tensor, key: Tensor, scale: float) -> None:
        for row, number, place, first in self._places:
            row.see(query[number, :, place], key[number, :, first : first + row.length], scale)
