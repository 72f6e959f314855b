"""The chapters on scores: methods by datasets, differences, costs and equal budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from service.evaluation.document.blocks import Block, Heading, Plot, Table, Text
from service.evaluation.document.plots import WITHOUT, available, cost_plot, pareto_front
from service.evaluation.equal_budget import Verdict, unproven, verdicts
from service.evaluation.report import summary
from service.evaluation.rows import Row
from service.evaluation.statistics import LEVEL, Interval, flips_of, holm, interval, randomisation

ByMethod = Mapping[str, Sequence[Row]]
Judged = Mapping[str, Sequence[Verdict]]
MEASURE: Final = "f1"
SCORES: Final = {
    "em": "EM", "f1": "F1", "accuracy": "accuracy", "compound_accuracy": "compound accuracy",
    "judge": "LLM judge",
    "supporting_recall": "supporting recall", "pool_recall": "recall of those read",
}  # fmt: skip
COSTS: Final = {
    "llm_calls": "LLM calls", "retrievals": "retrievals", "tokens": "tokens", "seconds": "seconds",
}  # fmt: skip
MARK: Final = "✗"
_RULE: Final = (
    f"{MARK} marks a loop that does not beat a plain baseline at equal budgets: its {MEASURE} is "
    "not significantly higher than the best that the baseline reached for at most 1.05 times the "
    "loop's LLM calls, or tokens, per question."
)


def by_dataset(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Return the rows by dataset and method, in their original order."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        found.setdefault(row.dataset, {}).setdefault(row.method, []).append(row)
    return found


def values(rows: Sequence[Row], measure: str) -> list[float]:
    """Return the scores of the measure, without rows to which it does not apply."""
    return [score for row in rows if (score := row.scores.get(measure)) is not None]


def shown(found: Interval) -> str:
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def judged_loops(datasets: Mapping[str, ByMethod]) -> Judged:
    """Return the equal-budget verdicts of each dataset."""
    return {
        name: verdicts([row for rows in methods.values() for row in rows], MEASURE)
        for name, methods in datasets.items()
    }


def score_blocks(datasets: Mapping[str, ByMethod], judged: Judged) -> Iterator[Block]:
    """Yield the chapter with a table per dataset and the differences between the methods."""
    yield Heading("Scores")
    yield Text(
        f"Means with {LEVEL:.0%} intervals, by bootstrap over the questions. A failed question "
        f"counts as wrong. {_RULE}"
    )
    for name, methods in datasets.items():
        yield Heading(name or "dataset", 3)
        yield _score_table(methods, unproven(judged[name]))
        yield from _difference_blocks(methods)


def _score_table(methods: ByMethod, marked: set[str]) -> Table:
    used = [name for name in SCORES if any(values(rows, name) for rows in methods.values())]
    head = ["method", "questions", "failed", "answered", *(SCORES[name] for name in used)]
    rows = []
    for method, own in methods.items():
        failed = sum(row.error is not None for row in own)
        answered = sum(row.answered for row in own) / len(own)
        scores = [values(own, name) for name in used]
        cells = [shown(interval(found)) if found else "–" for found in scores]
        name = f"{method} {MARK}" if method in marked else method
        rows.append([name, str(len(own)), str(failed), f"{answered:.2f}", *cells])
    return Table(head, rows)


def _difference_blocks(methods: ByMethod) -> Iterator[Block]:
    """Yield a matrix of differences if there are several methods."""
    scores = {
        method: {row.id: score for row in rows if (score := row.scores.get(MEASURE)) is not None}
        for method, rows in methods.items()
    }
    pairs = [
        (one, other) for one, other in combinations(scores, 2) if scores[one].keys() & scores[other]
    ]
    if not pairs:
        return
    found = [_deltas(scores[one], scores[other]) for one, other in pairs]
    corrected = holm([randomisation(deltas, flips_of(len(pairs))) for deltas in found])
    cells: dict[tuple[str, str], str] = {}
    for (one, other), deltas, p in zip(pairs, found, corrected, strict=True):
        mean, star = sum(deltas) / len(deltas), "*" if p < 1 - LEVEL else ""
        cells[one, other] = f"{mean:+z.3f}{star}"
        cells[other, one] = f"{-mean:+z.3f}{star}"
    yield Text(
        f"Differences of {MEASURE}, row minus column, on the questions that both were asked. * "
        f"p < {1 - LEVEL:.2f} by approximate randomisation, corrected for {len(pairs)} pairs "
        "(Holm)."
    )
    yield Table(
        ["", *scores], [[one, *(cells.get((one, other), "") for other in scores)] for one in scores]
    )


def _deltas(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[float]:
    return [ours[name] - theirs[name] for name in ours if name in theirs]


def cost_blocks(datasets: Mapping[str, ByMethod]) -> Iterator[Block]:
    """Yield the chapter on the cost of the scores, with the Pareto fronts."""
    yield Heading("Accuracy against cost")
    yield Text(
        "Means per question. A method is on the Pareto front (*) of a cost if no other one that "
        f"costs at most as much has at least its {MEASURE}."
    )
    if not available():
        yield Text(WITHOUT)
    for name, methods in datasets.items():
        yield Heading(name or "dataset", 3)
        yield from _costs_of(name, methods)


def _costs_of(dataset: str, methods: ByMethod) -> Iterator[Block]:
    means = {method: summary(method, rows).means for method, rows in methods.items()}
    fronts, plots = {}, []
    for cost, label in COSTS.items():
        points = {
            method: (spent, score)
            for method, own in means.items()
            if (spent := own[cost]) is not None and (score := own[MEASURE]) is not None
        }
        fronts[cost] = set(pareto_front(points))
        if points and available():
            caption = f"{dataset}: {MEASURE} over {label} per question."
            plots.append(Plot(cost_plot(points, f"{label} per question", MEASURE), caption))
    rows = []
    for method, own in means.items():
        cells = [_amount(own[cost]) + ("*" if method in fronts[cost] else "") for cost in COSTS]
        score = own[MEASURE]
        rows.append([method, "–" if score is None else f"{score:.3f}", *cells])
    yield Table(["method", MEASURE, *COSTS.values()], rows)
    yield from plots


def _amount(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def budget_blocks(judged: Judged) -> Iterator[Block]:
    """Yield the chapter on equal budgets if there is a loop to judge."""
    if not any(judged.values()):
        return
    yield Heading("Equal budgets")
    yield Text(
        f"{_RULE} Open: it is better, but no evaluated variant of the baseline uses most of the "
        "budget. Evaluate more of them, such as one_retrieval@top_k=20 or one_retrieval@samples=8."
    )
    for name, found in judged.items():
        yield Heading(name or "dataset", 3)
        yield Table(
            [
                "loop",
                "baseline",
                "budget",
                "result",
                "compared with",
                "difference",
                "cost of the loop",
                "cost of the baseline",
                "reason",
            ],
            [_verdict(each) for each in found],
            numbers=False,
        )


def _verdict(each: Verdict) -> list[str]:
    found = each.difference
    difference = (
        "" if found is None else f"{found.mean:+z.3f} [{found.low:+z.3f}, {found.high:+z.3f}]"
    )
    known = each.against is not None
    return [
        each.loop, each.baseline, COSTS[each.budget],
        f"{MARK} {each.result}" if each.result == "does not beat" else each.result,
        each.against or "", difference, f"{each.cost:,.1f}" if known else "",
        f"{each.spent:,.1f}" if known else "", each.why,
    ]  # fmt: skip
