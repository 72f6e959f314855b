"""A text that is read by prefill alone: entropies, attention maxima, rows where they are wanted."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.core.errors import EngineFailure
from service.engines.base import TokenUsage
from service.engines.batching.attention import Array, Maxima
from service.engines.batching.jobs import ScoreJob
from service.engines.draft_text import place_tokens, wanted_tokens
from service.engines.encoding import PromptEncoder
from service.engines.signals import AttentionRow, ScoredToken, Scoring, Span


@dataclass(slots=True, eq=False)
class Reading:
    """One text under way; `wanted` are the tokens whose rows are asked for."""

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
        """`numbers`: entropies and log-probabilities of all tokens but the first."""
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


def open_reading(encoder: PromptEncoder, job: ScoreJob, most: int) -> Reading:
    """Raises EngineFailure for a text longer than `most` tokens."""
    ids, spans = place_tokens(encoder, job.request)
    if not 0 < len(ids) <= most:
        raise EngineFailure(
            f"a text of {len(ids)} tokens cannot be scored; the length must be 1 to {most} tokens"
        )
    wanted = frozenset(wanted_tokens(spans, job.request))
    return Reading(job, ids, spans, wanted)
