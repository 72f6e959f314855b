"""The state of a call in a batch: a row of output, with or without signals, or a text to score."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from service.core.errors import EngineFailure
from service.engines.attention_numpy import Array, Maxima, entropies
from service.engines.base import Delta, FinishReason, TokenUsage
from service.engines.batch.constraints import ChoiceConstraint, Constraint, Logits
from service.engines.batch.prefixes import block_names
from service.engines.batch.worker import Job, ScoreJob, SignalJob
from service.engines.encoding import PromptEncoder
from service.engines.output import (
    Detokenizer,
    StopCutter,
    TokenAssembler,
    place_tokens,
    wanted_tokens,
)
from service.engines.signals import (
    AttentionRow,
    AttentionUpdate,
    ScoredToken,
    Scoring,
    SignalDelta,
    Span,
)


class BatchRow:
    """A call in the batch. `prompt` holds its ids, `token` the last one chosen."""

    def __init__(
        self,
        job: Job,
        prompt: list[int],
        detokenizer: Detokenizer,
        *,
        limit: int,
        end_tokens: frozenset[int],
        constraint: Constraint | None,
    ) -> None:
        self.job = job
        self.prompt = prompt
        self.token = -1
        self.written = 0
        self.constraint = constraint
        self._limit = limit
        self._ends = end_tokens
        self._detokenizer = detokenizer
        self._stops = StopCutter(job.request.stop)
        self._logprob: float | None = None
        self._temperature = job.request.temperature
        self._random = np.random.default_rng(job.request.seed % 2**63)

    @property
    def length(self) -> int:
        """The number of cache positions after the last chosen token has been processed."""
        return len(self.prompt) + self.written

    @property
    def most(self) -> int:
        """The number of cache positions that the row may come to use."""
        return len(self.prompt) + self.job.request.max_tokens

    @cached_property
    def blocks(self) -> list[bytes]:
        """Names of the prompt's blocks in a `PrefixCache`."""
        return block_names(self.prompt)

    @property
    def is_plain(self) -> bool:
        """Whether the most likely token is chosen and nothing else of the logits is needed."""
        return self.constraint is None and self._temperature <= 0 and not self.job.request.logprobs

    def choose(self, logits: Logits) -> int:
        """Choose the next token by this row's rules, from logits (vocabulary,) in float32."""
        masked = self.constraint.mask(logits) if self.constraint is not None else logits
        if self._temperature > 0:
            noise = self._random.gumbel(size=len(masked))
            token = int((masked / self._temperature + noise).argmax())
        else:
            token = int(masked.argmax())
        if self.job.request.logprobs:
            self._logprob = (self._logprob or 0.0) + self._log_chance(logits, token)
        return token

    def _log_chance(self, logits: Logits, token: int) -> float:
        if isinstance(self.constraint, ChoiceConstraint):
            return self.constraint.log_share(logits, token)
        return log_chance(logits, token)

    def take(self, token: int) -> Delta | None:
        """Take the chosen token. Returns the delta to send, if any; the last one has `finish`
        set.
        """
        self.token = token
        self.written += 1
        if self.constraint is not None and self.constraint.advance(token):
            return self._last("stop", token)
        if token in self._ends:
            return self._last("stop", token)
        if self.constraint is not None and self.constraint.label is None and self._is_choice:
            return None
        text = self._cut(self._detokenizer.feed(token))
        if self._stops.stopped:
            return self._finish(text, "stop")
        if self.written >= self._limit:
            return self._finish(text + self._rest(), "length")
        return self._delta(text) if text else None

    @property
    def _is_choice(self) -> bool:
        return bool(self.job.request.choices)

    def _last(self, reason: FinishReason, token: int) -> Delta:
        if self.constraint is not None and self.constraint.label is not None:
            return self._finish(self.constraint.label, reason)
        text = "" if token in self._ends else self._cut(self._detokenizer.feed(token))
        return self._finish(text + self._rest(), reason)

    def _cut(self, text: str) -> str:
        return self._stops.feed(text)

    def _rest(self) -> str:
        return self._stops.feed(self._detokenizer.flush()) + self._stops.flush()

    def _delta(self, text: str) -> Delta:
        logprob, self._logprob = self._logprob, None
        return Delta(text, logprob)

    def _finish(self, text: str, reason: FinishReason) -> Delta:
        usage = TokenUsage(len(self.prompt), self.written)
        return Delta(text, self._logprob, "stop" if self._stops.stopped else reason, usage)


def log_chance(logits: Logits, token: int) -> float:
    """Return the natural logarithm of one token's probability."""
    top = logits.max()
    return float(logits[token] - top - np.log(np.exp(logits - top).sum()))


class SignalRow(BatchRow):
    """A row with signals. With attention, a token is sent once its own row has been computed."""

    def __init__(
        self, job: SignalJob, prompt: list[int], detokenizer: Detokenizer, **options: Any
    ) -> None:
        super().__init__(job, prompt, detokenizer, **options)
        self.signals = job
        self._draft = TokenAssembler(detokenizer, job.request.stop, attention=job.attention)
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
        """Take the attention weights of this row's newest query: (heads, positions)."""
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


@dataclass(slots=True, eq=False)
class ReadingRow:
    """A text that is scored. `wanted` are the tokens whose attention rows are requested."""

    job: ScoreJob
    ids: list[int]
    spans: list[Span]
    wanted: frozenset[int]
    rows: list[AttentionRow] = field(default_factory=list)
    maxima: Maxima | None = None

    def see(self, weights: Array) -> None:
        """Take the next rows, in order: (heads, rows, keys up to the last of these rows)."""
        if self.maxima is None:
            self.maxima = Maxima(weights.shape[0], len(self.ids))
        first = self.maxima.size
        self.maxima.fold(weights)
        for row in range(first, self.maxima.size):
            if row + 1 in self.wanted:
                mean = weights[:, row - first, : row + 1].mean(axis=0)
                self.rows.append(AttentionRow(row + 1, tuple(mean.tolist())))

    def result(self, numbers: list[list[float]] | None) -> Scoring:
        """Return the result; `numbers` holds entropies and log-probabilities of all tokens but the
        first.
        """
        if self.maxima is None:
            raise EngineFailure("the model's last layer did not expose its attention")
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


def open_reading(encoder: PromptEncoder, job: ScoreJob, most: int) -> ReadingRow:
    """Prepare a text to be scored. Raises EngineFailure if it is longer than `most` tokens."""
    ids, spans = place_tokens(encoder, job.request)
    if not 0 < len(ids) <= most:
        raise EngineFailure(
            f"a text of {len(ids)} tokens cannot be scored; the length must be 1 to {most} tokens"
        )
    wanted = frozenset(wanted_tokens(spans, job.request))
    return ReadingRow(job, ids, spans, wanted)
