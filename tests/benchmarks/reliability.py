"""How well a classifier's probabilities match its accuracy: bins, calibration error, tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

BINS: Final = 10


class ProbabilityBin(NamedTuple):
    """Predictions of similar probability: its bounds, how many (`size`), their mean probability,
    and the share of them that is right."""

    low: float
    high: float
    size: int
    confidence: float
    accuracy: float


def reliability(confidences: Sequence[float], right: Sequence[bool]) -> list[ProbabilityBin]:
    """Ten bins of equal width over 0 to 1, empty ones left out."""
    places = [min(int(confidence * BINS), BINS - 1) for confidence in confidences]
    bins = []
    for place in sorted(set(places)):
        mine = [index for index, own in enumerate(places) if own == place]
        bins.append(
            ProbabilityBin(
                place / BINS,
                (place + 1) / BINS,
                len(mine),
                sum(confidences[index] for index in mine) / len(mine),
                sum(right[index] for index in mine) / len(mine),
            )
        )
    return bins


def expected_calibration_error(bins: Sequence[ProbabilityBin]) -> float:
    """The mean gap between probability and share of right ones, by the size of the bins."""
    total = sum(each.size for each in bins)
    return sum(each.size * abs(each.accuracy - each.confidence) for each in bins) / total


def reliability_plot(bins: Sequence[ProbabilityBin], width: int = 40) -> str:
    """A bar a bin: `#` up to the share that is right, `|` where the mean probability stands."""
    lines = ["probability     n  right"]
    for each in bins:
        bar = list(("#" * round(each.accuracy * width)).ljust(width + 1))
        bar[round(each.confidence * width)] = "|"
        label = f"{each.low:.1f}-{each.high:.1f} {each.size:>9}  {each.accuracy:.2f}"
        lines.append(f"{label}  {''.join(bar).rstrip()}")
    return "\n".join(lines)


def confusion_table(pairs: Sequence[tuple[str, str]], names: Sequence[str]) -> str:
    """Markdown: a row for each true name, a column for each given one; a pair is (given, true)."""
    counts = Counter(pairs)
    lines = [f"| true ↓ given → | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| {true} | {' | '.join(str(counts[given, true]) for given in names)} |" for true in names
    ]
    return "\n".join(lines)
