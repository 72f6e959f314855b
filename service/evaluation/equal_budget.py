"""Whether a loop beats the plain baselines at equal budgets (METHODS.md §9.3).

A loop that asks the model eight times must be compared with a baseline that spends eight calls, or
as many tokens, on more passages or on several samples of the answer. Each baseline is therefore
evaluated in several variants (`one_retrieval`, `one_retrieval@top_k=10`,
`one_retrieval@samples=8`), and a loop is compared with the best variant within its budget.
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
    difference: ScoreDifference | None = None
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
        _mean(row.llm_calls for row in counted),
        _mean(row.prompt_tokens + row.completion_tokens for row in counted),
    )


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0


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
    against = min(met, key=lambda run: _mean(_deltas(loop, run)))
    found = _difference(loop, against)
    spent = max(run.cost(budget) for run in met) >= ENOUGH * loop.cost(budget)
    result, why = _result(found, bool(affordable), spent)
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
        return "open", "it is better, but no variant of the baseline uses most of the budget"
    if affordable:
        return "does not beat", "it is not significantly better"
    return "open", "every variant of the baseline costs more"


def verdicts(rows: Sequence[Row], measure: str) -> list[Verdict]:
    """Return the verdict for every loop in the rows of one dataset, against each baseline and at
    each budget."""
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
    """Return the loops that do not beat some baseline at some equal budget. The report marks
    them."""
    return {verdict.loop for verdict in found if verdict.result == "does not beat"}
