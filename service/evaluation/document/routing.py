"""The chapter on the router: which routes it confuses, and how well its confidence is
calibrated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from service.core.domain import RouteName
from service.evaluation.document.blocks import Block, Heading, Plot, Table, Text
from service.evaluation.document.plots import available, calibration_plot
from service.evaluation.rows import Row

BINS: Final = 10
_BY_ROUTER: Final = frozenset({"model", "classifier"})


@dataclass(frozen=True, slots=True)
class ConfidenceBin:
    """Route choices of similar confidence: their number, mean confidence, and share of correct
    ones."""

    count: int
    confidence: float
    accuracy: float


def routed(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with a gold route whose route was chosen by a model or a classifier.

    A question that several methods routed alike is counted once.
    """
    found = {
        (row.dataset, row.id, row.chosen_route, row.confidence): row
        for row in rows
        if row.chosen_by in _BY_ROUTER and row.gold_route and row.chosen_route
    }
    return list(found.values())


def bins_of(rows: Sequence[Row]) -> list[ConfidenceBin]:
    """Return the non-empty bins of equal width; a confidence of 1.0 is in the last one."""
    groups: dict[int, list[tuple[float, bool]]] = {}
    for row in rows:
        if row.confidence is not None:
            place = min(int(row.confidence * BINS), BINS - 1)
            right = row.chosen_route == row.gold_route
            groups.setdefault(place, []).append((row.confidence, right))
    return [
        ConfidenceBin(
            len(own), sum(c for c, _ in own) / len(own), sum(r for _, r in own) / len(own)
        )
        for _, own in sorted(groups.items())
    ]


def calibration_error(bins: Sequence[ConfidenceBin]) -> float:
    """Return the expected calibration error (Naeini and others, 2015), or 0 without bins.

    It is the mean distance between confidence and accuracy, weighted by the sizes of the bins.
    """
    total = sum(each.count for each in bins)
    off = sum(each.count * abs(each.confidence - each.accuracy) for each in bins)
    return off / total if total else 0.0


def routing_blocks(rows: Sequence[Row]) -> Iterator[Block]:
    """Yield the chapter, or nothing if no route was chosen or no dataset gives one."""
    chosen = routed(rows)
    if not chosen:
        return
    right = sum(row.chosen_route == row.gold_route for row in chosen)
    yield Heading("Routes")
    yield Text(
        f"The router chose the dataset's route for {right:,} of {len(chosen):,} questions "
        f"({right / len(chosen):.1%}). Rows are the datasets' routes, columns the chosen ones, "
        "before any escalation."
    )
    counts = Counter((row.gold_route, row.chosen_route) for row in chosen)
    routes = [name for name in get_args(RouteName) if any(name in pair for pair in counts)]
    yield Table(
        ["dataset \\ chosen", *routes],
        [[gold, *(str(counts[gold, name]) for name in routes)] for gold in routes],
    )
    yield from _calibration(bins_of(chosen))


def _calibration(bins: Sequence[ConfidenceBin]) -> Iterator[Block]:
    if not bins:
        return
    yield Heading("Calibration", 3)
    yield Text(
        "A router is calibrated if it is right as often as it is sure. The expected calibration "
        f"error is {calibration_error(bins):.3f}."
    )
    yield Table(
        ["confidence", "choices", "accuracy"],
        [[f"{each.confidence:.3f}", str(each.count), f"{each.accuracy:.3f}"] for each in bins],
    )
    if available():
        points = [(each.confidence, each.accuracy) for each in bins]
        yield Plot(calibration_plot(points), "Accuracy of the router over its confidence.")
