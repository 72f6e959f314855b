"""A running call that also gives entropies and attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from service.engines.base import FinishReason, TokenUsage
from service.engines.batching.attention import Array, Maxima, entropies
from service.engines.batching.constraints import Logits
from service.engines.batching.jobs import SignalJob
from service.engines.batching.rows import Row
from service.engines.encoding import Detokenizer
from service.engines.signals import AttentionUpdate, SignalDelta
from service.vllm_plugin.draft import Draft


class SignalRow(Row):
    """With attention, a token is sent once its own row, as a query, was computed."""

    def __init__(
        self, job: SignalJob, prompt: list[int], detokenizer: Detokenizer, **options: Any
    ) -> None:
        super().__init__(job, prompt, detokenizer, **options)
        self.signals = job
        self._draft = Draft(detokenizer, job.request.stop, attention=job.attention)
        self._maxima: Maxima | None = None
        self._means = np.zeros((2, 0), np.float32)

    @property
    def is_plain(self) -> bool:
        return False

    def choose(self, logits: Logits) -> int:
        entropy, logprob = entropies(logits[None])[:, 0].tolist()
        self._draft.add_signals([(entropy, logprob)], [])
        return int(logits.argmax())

    def see(self, weights: Array) -> None:
        """Take the weights of this row's newest query: (heads, positions)."""
        self.signals.rows.append(weights.mean(axis=0))
        prompt = len(self.prompt)
        if weights.shape[1] > prompt:
            if self._maxima is None:
                self._maxima = Maxima(weights.shape[0], self._limit)
            self._maxima.fold(weights[:, None, prompt:])
            self._draft.add_signals([], [self._changes(self._maxima.means())])

    def _changes(self, means: Array) -> tuple[AttentionUpdate, ...]:
        known = self._means.shape[1]
        changed = (means[:, :known] != self._means).any(axis=0).nonzero()[0].tolist()
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
