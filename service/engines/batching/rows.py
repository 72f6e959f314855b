"""One running call: which token it takes, and what text that gives."""

from __future__ import annotations

import numpy as np

from service.engines.base import Delta, FinishReason, TokenUsage
from service.engines.batching.constraints import ChoiceConstraint, Constraint, Logits
from service.engines.batching.jobs import Job
from service.engines.encoding import Detokenizer
from service.engines.text_stream import StopCutter


class Row:
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
        """Positions in the cache once the last chosen token has gone through the model."""
        return len(self.prompt) + self.written

    @property
    def is_plain(self) -> bool:
        """True where the largest logit is the answer and nothing else is asked."""
        return self.constraint is None and self._temperature <= 0 and not self.job.request.logprobs

    def choose(self, logits: Logits) -> int:
        """The next token by this row's rules, from logits (vocabulary,) in float32."""
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
        """Take the chosen token in; the delta to send, if any. With `finish` set it is the last."""
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
    """The natural-log probability of one token."""
    top = logits.max()
    return float(logits[token] - top - np.log(np.exp(logits - top).sum()))
