"""Whether a loop beats the plain baselines at equal budgets (METHODS.md §9.3).

A loop that asks the model eight times must be compared with what a baseline does with eight calls,
or with as many tokens: with more passages, or several samples of the answer. So each baseline is
evaluated several times, as variants `one_retrieval`, `one_retrieval@top_k=10`,
`one_retrieval@samples=8` and so on, and a loop meets the best variant that it can pay for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from service.evaluation.methods import VARIANT
from service.evaluation.rows import Row
from service.evaluation.statistics import ScoreDifference, difference

Budget = Literal["llm_calls", "tokens"]
Result = Literal["beats", "does not beat", "open"]
BUDGETS: Final[tuple[Budget, ...]] = ("llm_calls", "tokens")
BASELINES: Final = ("one_retrieval", "entropy_gate")
UNJUDGED: Final = frozenset({*BASELINES, "no_retrieval", "direct"})
TOLERANCE: Final = 0.05  # by which a baseline may exceed the budget
ENOUGH: Final = 0.8  # share of the budget that a baseline must have spent to be beaten for good


@dataclass(frozen=True, slots=True)
class MethodRun:
    """What one method did on one dataset: the score per question, and the means of its cost."""

    method: str
    scores: Mapping[str, float]
    llm_calls: float
    tokens: float

    def cost(self, budget: Budget) -> float:
        return self.llm_calls if budget == "llm_calls" else self.tokens


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether `loop` beats `baseline` at an equal budget. `against` is the variant that it was
    compared with, None if there was none; `cost` is the loop's budget, and `spent` what that
    variant spent, both per question."""

    loop: str
    baseline: str
    budget: Budget
    result: Result
    why: str
    against: str | None = None
    difference: ScoreDifference | None = None
    cost: float = 0.0
    spent: float = 0.0


def family(method: str) -> str:
    """Return the loop or the route of a method, without its variant and the route it runs under."""
    return method.partition(VARIANT)[0].rpartition("/")[2]


def run_of(rows: Sequence[Row], measure: str) -> MethodRun:
    """Return the run of one method's rows on one dataset. Rows without the measure do not count."""
    counted = [row for row in rows if row.scores.get(measure) is not None]
    return MethodRun(
        rows[0].method,
        {row.id: row.scores[measure] or 0.0 for row in counted},
        _mean(row.llm_calls for row in counted),
        _mean(row.prompt_tokens + row.completion_tokens for row in counted),
    )


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0


def judge(loop: MethodRun, baseline: str, runs: Sequence[MethodRun], budget: Budget) -> Verdict:
    """Compare a loop with the best variant of a baseline that costs no more.

    A loop that is not better beyond chance does not beat it. One that is better beats it if the
    variants spend most of the loop's budget, or one spends more than it; else the question is open,
    because nobody knows what the baseline would do with the rest.
    """
    variants = [
        run
        for run in runs
        if family(run.method) == baseline and run.scores.keys() & loop.scores.keys()
    ]
    if not variants:
        return Verdict(loop.method, baseline, budget, "open", f"{baseline} was not evaluated")
    limit = loop.cost(budget) * (1 + TOLERANCE)
    affordable = [run for run in variants if run.cost(budget) <= limit]
    dearer = len(affordable) < len(variants)
    # A loop that is cheaper than every variant meets the cheapest one.
    met = affordable or [min(variants, key=lambda run: run.cost(budget))]
    against = min(met, key=lambda run: _mean(_deltas(loop, run)))
    found = _difference(loop, against)
    most = max(run.cost(budget) for run in met)
    result, why = _result(found, bool(affordable), dearer or most >= ENOUGH * loop.cost(budget))
    return Verdict(
        loop.method, baseline, budget, result, why, against.method, found,
        loop.cost(budget), against.cost(budget),
    )  # fmt: skip


def _deltas(loop: MethodRun, baseline: MethodRun) -> list[float]:
    return [
        score - baseline.scores[name]
        for name, score in loop.scores.items()
        if name in baseline.scores
    ]


def _difference(loop: MethodRun, baseline: MethodRun) -> ScoreDifference:
    common = [name for name in loop.scores if name in baseline.scores]
    return difference(
        [loop.scores[name] for name in common], [baseline.scores[name] for name in common]
    )


def _result(found: ScoreDifference, affordable: bool, spent: bool) -> tuple[Result, str]:
    if found.better:
        if spent:
            return "beats", "it is better, and the baseline had as much to spend"
        return "open", "it is better, but no variant of the baseline spends the budget"
    if affordable:
        return "does not beat", "it is not better beyond chance"
    return "open", "every variant of the baseline costs more"


def verdicts(rows: Sequence[Row], measure: str) -> list[Verdict]:
    """Judge every loop among the rows of one dataset, against each baseline, at each budget."""
    methods: dict[str, list[Row]] = {}
    for row in rows:
        methods.setdefault(row.method, []).append(row)
    runs = [run_of(own, measure) for own in methods.values()]
    return [
        judge(run, baseline, runs, budget)
        for run in runs
        if run.scores and family(run.method) not in UNJUDGED
        for baseline in BASELINES
        for budget in BUDGETS
    ]


def unproven(found: Iterable[Verdict]) -> set[str]:
    """Return the loops that do not beat some baseline at some equal budget: they are marked."""
    return {verdict.loop for verdict in found if verdict.result == "does not beat"}
