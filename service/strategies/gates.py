"""Baselines that answer closed book, and search once if that answer is unsure (METHODS.md §7.3).

Each is a gate over the probabilities of the answer's tokens, which any engine with
log-probabilities reports: no attention is needed. An unknown probability counts as unsure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

from service.answer.events import Withdraw
from service.answer.inquiry import OpenStep
from service.core.domain import LoopName
from service.strategies.anrag import search_and_read
from service.strategies.base import Method
from service.strategies.reader import answer_from_memory

PROBABILITY: Final = 0.8  # the least geometric mean of the probabilities of the tokens
MARGIN: Final = 0.25  # the greatest mean; two tokens of 0.8 and 0.2 have it
TREND: Final = 1.3  # nats, the greatest; the value of ETC's published configuration
SEEN: Final = 20  # tokens of which servers report probabilities, usually the most

# Natural-log probabilities of a token's best alternatives, the best first.
Best = Sequence[float]


class EntropyGate(Method):
    """The gate is the mean surprisal of the answer's tokens, −log p in nats, which is what greedy
    decoding reveals of their entropy. The threshold is given as a probability: its −log is the
    threshold in nats. An unsure answer is withdrawn before the search; at a limit of the question
    it is kept.
    """

    name: ClassVar[LoopName] = "entropy_gate"
    weighs = sampled = answering = from_memory = True
    alternatives: ClassVar[int] = 1  # of each token

    def is_sure(self, step: OpenStep) -> bool:
        return step.probability is not None and step.probability >= PROBABILITY

    async def run(self) -> str | None:
        async with self.step("answer") as step:
            step.weighed = self.alternatives
            await answer_from_memory(step)
            stands = bool(step.answer) and (self.is_sure(step) or not self.scope.may_go_on())
            kept = stands or step.stopped_by != "answer"
            if not kept:
                if step.answer:
                    await step.emit(Withdraw(role=step.as_role, reason="trigger"))
                step.flags.remove("closed_book")
                step.answer = None
        if not kept:
            async with self.step("retrieve") as step:
                await search_and_read(step, judged=False)
        return step.answer


class MarginGate(EntropyGate):
    """TARG's margin gate (Wang and others, 2025): the gap between a token's two best logits, by a
    decreasing function, as a mean over the tokens."""

    name = "margin_gate"
    alternatives = 2

    def is_sure(self, step: OpenStep) -> bool:
        return bool(step.best) and margin(step.best) <= MARGIN


class TrendGate(EntropyGate):
    """ETC's gate (Li and others, 2025) over a whole answer: entropy that begins to rise steeply.

    Of ETC, which asks at each content word, weighed by attention, what to search for next, this is
    the signal: every token of the answer counts, and counts alike.
    """

    name = "trend_gate"
    alternatives = SEEN

    def is_sure(self, step: OpenStep) -> bool:
        return bool(step.best) and max(trends([entropy(best) for best in step.best])) <= TREND


def margin(tokens: Sequence[Best]) -> float:
    """Return the mean of exp(−gap) over tokens, which is p₂ / p₁, in [0, 1]: 1 for a token whose
    two best alternatives are alike. A token without a second one counts 0."""
    return sum(math.exp(best[1] - best[0]) for best in tokens if len(best) > 1) / len(tokens)


def entropy(best: Best) -> float:
    """Return the entropy in nats, in which all tokens that are not reported count as one."""
    chances = [math.exp(logprob) for logprob in best]
    rest = max(0.0, 1.0 - sum(chances))
    return -sum(p * math.log(p) for p in [*chances, rest] if p > 0.0)


def trends(entropies: Sequence[float]) -> list[float]:
    """Return the second differences of a sequence, smoothed as ETC does; 0 for the first two.

    M_t = α Δ²H_t + (1 − α) Δ²H_(t−1), with α = 0.9 + 0.1 w, where w is the share of the previous
    difference in the distances of both from the mean so far. A difference of 0 is left out.
    """
    found, total, count, before = [0.0] * len(entropies), 0.0, 0, 0.0
    for t in range(2, len(entropies)):
        second = entropies[t] - 2 * entropies[t - 1] + entropies[t - 2]
        if second == 0.0:
            continue
        total, count = total + second, count + 1
        mean = total / count
        apart = abs(before - mean) + abs(second - mean)
        alpha = 0.9 + 0.1 * (abs(before - mean) / apart if apart else 0.0)
        found[t] = alpha * second + (1 - alpha) * before
        before = second
    return found
