"""Compare methods: intervals and tests by resampling (METHODS.md §9.1), and whether a loop beats
the plain baselines at equal budgets (METHODS.md §9.3). Needs the extra `evaluate`.

All functions are pure. Random numbers come from a fixed seed, so that the same rows give the same
report.

A loop that asks the model eight times must be compared with a baseline that spends eight calls, or
as many tokens, on more passages or on several samples of the answer. Each baseline is therefore
evaluated in several variants (`one_retrieval`, `one_retrieval@top_k=10`,
`one_retrieval@samples=8`), and a loop is compared with the best variant within its budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from scipy.stats import binomtest

from service.evaluation.means import mean
from service.evaluation.methods import VARIANT
from service.evaluation.rows import Row

SEED: Final = 13370
RESAMPLES: Final = 2_000
FLIPS: Final = 10_000
FLIPS_PER_PAIR: Final = 50
LEVEL: Final = 0.95
_ALIKE: Final = 1e-9  # sums of scores that differ by less are considered equal
_AT_ONCE: Final = 1_000_000  # signs drawn at once


class Interval(NamedTuple):
    """A mean with the bounds of its confidence interval.

    Of the differences of two methods' scores on the same questions, `p` is the two-sided
    probability of a mean at least as far from 0 if the methods were interchangeable.
    """

    mean: float
    low: float
    high: float
    p: float = 1.0

    @property
    def better(self) -> bool:
        """Whether a mean difference is significantly above 0."""
        return self.low > 0 and self.p < 1 - LEVEL


def interval(values: Sequence[float], resamples: int = RESAMPLES) -> Interval:
    """Return the mean of `values` and its percentile bootstrap interval (Efron, 1979).

    Resampling equal values gives an interval of width 0. If all values are 0 or all are 1, the
    Wilson interval of a share (1927) is returned instead, since a few questions do not prove
    perfection.
    """
    sample, count = np.asarray(values, float), len(values)
    mean = float(sample.mean())
    if set(values) <= {mean}:
        if mean not in (0.0, 1.0):
            return Interval(mean, mean, mean)
        share = binomtest(int(mean) * count, count).proportion_ci(LEVEL, method="wilson")
        return Interval(mean, float(share.low), float(share.high))
    random = np.random.default_rng(SEED)
    means = [random.choice(sample, count).mean() for _ in range(resamples)]
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, float(low), float(high))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Compare two methods on the same questions, in the same order.

    The paired bootstrap gives the interval and `randomisation` the probability.
    """
    deltas = [one - other for one, other in zip(ours, theirs, strict=True)]
    same = min(deltas) == max(deltas)
    found = Interval(deltas[0], deltas[0], deltas[0]) if same else interval(deltas)
    return found._replace(p=randomisation(deltas))


def randomisation(deltas: Sequence[float], flips: int = FLIPS) -> float:
    """Return the two-sided probability that the mean of `deltas` is at least as far from 0 if their
    signs were random.

    It is exact if all deltas other than 0 have the same size (McNemar's exact test). Otherwise it
    is estimated from `flips` random draws of signs (approximate randomisation; Noreen, 1989), and
    is at least 1 / (`flips` + 1).
    """
    unequal = np.array([delta for delta in deltas if abs(delta) > _ALIKE])
    sizes, count = np.abs(unequal), len(unequal)
    if not count:
        return 1.0
    if np.ptp(sizes) < _ALIKE:
        return float(binomtest(int((unequal > 0).sum()), count).pvalue)
    random, seen = np.random.default_rng(SEED), abs(unequal.sum()) - _ALIKE
    reached, step = 0, max(1, _AT_ONCE // count)
    for drawn in range(0, flips, step):
        flags = random.integers(0, 2, (min(step, flips - drawn), count), dtype=np.int8)
        reached += int((np.abs(sizes.sum() - 2 * (flags @ sizes)) >= seen).sum())
    return (reached + 1) / (flips + 1)


def flips_of(pairs: int) -> int:
    """Return the number of draws of signs for each of `pairs` tests that `holm` corrects.

    The smallest corrected probability is then at most 1 / FLIPS_PER_PAIR, so that a difference can
    be significant however many tests there are.
    """
    return max(FLIPS, FLIPS_PER_PAIR * pairs)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return the probabilities of a family of tests, corrected for multiple testing (Holm,
    1979)."""
    count, highest = len(probabilities), 0.0
    corrected = [0.0] * count
    for rank, index in enumerate(sorted(range(count), key=probabilities.__getitem__)):
        highest = max(highest, min(1.0, (count - rank) * probabilities[index]))
        corrected[index] = highest
    return corrected


Budget = Literal["llm_calls", "tokens"]
Result = Literal["beats", "does not beat", "open"]
BUDGETS: Final[tuple[Budget, ...]] = ("llm_calls", "tokens")
BASELINES: Final = ("one_retrieval", "entropy_gate")
UNJUDGED: Final = frozenset({*BASELINES, "no_retrieval", "direct"})
TOLERANCE: Final = 0.05  # share by which a baseline may exceed the budget
# Share of the budget that a baseline must spend for a final verdict, and of the loop's questions
# that it must have been asked.
ENOUGH: Final = 0.8


@dataclass(frozen=True, slots=True)
class MethodRun:
    """The score of each question and the mean costs of one method on one dataset."""

    method: str
    scores: Mapping[str, float]
    llm_calls: float
    tokens: float

    def cost(self, budget: Budget) -> float:
        return self.llm_calls if budget == "llm_calls" else self.tokens


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether `loop` beats `baseline` at an equal budget.

    `against` is the variant that it was compared with, or None if there was none. `cost` is the
    loop's budget and `spent` the cost of that variant, both per question.
    """

    loop: str
    baseline: str
    budget: Budget
    result: Result
    why: str
    against: str | None = None
    difference: Interval | None = None
    cost: float = 0.0
    spent: float = 0.0


def family(method: str) -> str:
    """Return the loop or the route of a method name, without its variant and the route of a
    loop."""
    return method.partition(VARIANT)[0].rpartition("/")[2]


def run_of(rows: Sequence[Row], measure: str) -> MethodRun:
    """Return the run of one method from its rows on one dataset, without rows that lack the
    measure."""
    counted = [row for row in rows if row.scores.get(measure) is not None]
    return MethodRun(
        rows[0].method,
        {row.id: row.scores[measure] or 0.0 for row in counted},
        mean(row.llm_calls for row in counted) or 0.0,
        mean(row.prompt_tokens + row.completion_tokens for row in counted) or 0.0,
    )


def judge(loop: MethodRun, baseline: str, runs: Sequence[MethodRun], budget: Budget) -> Verdict:
    """Compare a loop with the best variant of a baseline that costs no more.

    A loop that is not significantly better does not beat the baseline. A significantly better loop
    beats it if a variant that it was compared with spends most of the loop's budget, or if every
    variant costs more. Otherwise the verdict is open, because the baseline's score with the
    remaining budget is unknown. Variants that were asked fewer than `ENOUGH` of the loop's
    questions do not count.
    """
    variants = [
        run
        for run in runs
        if family(run.method) == baseline
        and len(run.scores.keys() & loop.scores.keys()) >= ENOUGH * len(loop.scores)
    ]
    if not variants:
        return Verdict(loop.method, baseline, budget, "open", f"{baseline} was not evaluated")
    limit = loop.cost(budget) * (1 + TOLERANCE)
    affordable = [run for run in variants if run.cost(budget) <= limit]
    # A loop that is cheaper than every variant is compared with the cheapest one.
    met = affordable or [min(variants, key=lambda run: run.cost(budget))]
    against, found = min(
        ((run, _difference(loop, run)) for run in met), key=lambda one: one[1].mean
    )
    spent = max(run.cost(budget) for run in met) >= ENOUGH * loop.cost(budget)
    result, why = _result(found, bool(affordable), spent)
    return Verdict(
        loop.method, baseline, budget, result, why, against.method, found,
        loop.cost(budget), against.cost(budget),
    )  # fmt: skip


def _difference(loop: MethodRun, baseline: MethodRun) -> Interval:
    common = loop.scores.keys() & baseline.scores.keys()
    names = [name for name in loop.scores if name in common]
    return difference([loop.scores[n] for n in names], [baseline.scores[n] for n in names])


def _result(found: Interval, affordable: bool, spent: bool) -> tuple[Result, str]:
    if found.better:
        if spent:
            return "beats", "it is better, and the baseline had as much to spend"
        return "open", "it is better, but no variant of the baseline uses most of the budget"
    if affordable:
        return "does not beat", "it is not significantly better"
    return "open", "every variant of the baseline costs more"


def verdicts(methods: Mapping[str, Sequence[Row]], measure: str) -> list[Verdict]:
    """Return the verdict for every loop in the rows of one dataset, by method, against each
    baseline and at each budget."""
    runs = [run_of(rows, measure) for rows in methods.values()]
    return [
        judge(run, baseline, runs, budget)
        for run in runs
        if run.scores and family(run.method) not in UNJUDGED
        for baseline in BASELINES
        for budget in BUDGETS
    ]


def unproven(found: Iterable[Verdict]) -> set[str]:
    """Return the loops that do not beat some baseline at some equal budget. The report marks
    them."""
    return {verdict.loop for verdict in found if verdict.result == "does not beat"}


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names of the points that no other point dominates, in order of cost.

    A point is (cost, score). A point dominates another if it differs, costs at most as much and
    scores at least as much.
    """
    ordered = sorted(points.items(), key=lambda item: (item[1][0], -item[1][1], item[0]))
    front: list[str] = []
    best: tuple[float, float] | None = None
    for name, point in ordered:
        if best is None or point[1] > best[1] or point == best:
            front.append(name)
            best = point
    return front
