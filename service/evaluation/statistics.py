"""Confidence intervals of means and of differences between methods, by resampling (METHODS.md
§9.1).

All functions are pure. Random numbers come from a fixed seed, so that the same rows give the same
report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from operator import itemgetter
from random import Random
from typing import Final

SEED: Final = 13370
RESAMPLES: Final = 2_000
FLIPS: Final = 10_000
FLIPS_PER_PAIR: Final = 50
LEVEL: Final = 0.95
_KEPT: Final = 1_000  # number of values up to which the draws are cached
_ALIKE: Final = 1e-9  # sums of scores that differ by less are considered equal
_TO_FLAGS: Final = bytes.maketrans(b"01", b"\x00\x01")

Draw = Callable[[Sequence[float]], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """The mean difference of two methods' scores on the same questions, with its interval.

    `p` is the two-sided probability of a difference at least this large if the methods were
    interchangeable.
    """

    mean: float
    low: float
    high: float
    p: float

    @property
    def better(self) -> bool:
        """Whether the first method is significantly better."""
        return self.low > 0 and self.p < 1 - LEVEL


def interval(values: Sequence[float], resamples: int = RESAMPLES, seed: int = SEED) -> Interval:
    """Return the mean of `values` and its percentile bootstrap interval (Efron, 1979).

    Resampling equal values gives an interval of width 0. If all values are 0 or all are 1, the
    Wilson interval of a share (1927) is returned instead, since a few questions do not prove
    perfection. Raises ValueError if there are no values.
    """
    if not values:
        raise ValueError("an interval needs values")
    mean = math.fsum(values) / len(values)
    if min(values) == max(values):
        return _of_a_share(mean, len(values)) if mean in (0.0, 1.0) else _point(mean)
    return Interval(mean, *_bounds(_resampled(values, resamples, seed)))


def _point(mean: float) -> Interval:
    return Interval(mean, mean, mean)


def _of_a_share(share: float, count: int) -> Interval:
    z2 = _quantile_of_the_normal((1 + LEVEL) / 2) ** 2
    far = z2 / (count + z2)
    return Interval(share, share - far * share, share + far * (1 - share))


def _quantile_of_the_normal(share: float) -> float:
    """Solve Φ(z) = share by bisection."""
    low, high = -10.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        below = 0.5 * (1 + math.erf(middle / math.sqrt(2))) < share
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


def _resampled(values: Sequence[float], resamples: int, seed: int) -> list[float]:
    """Return the sorted means of samples with replacement, each as large as `values` (at least
    two)."""
    count = len(values)
    drawn = _kept_draws if count <= _KEPT else _draws
    return sorted(math.fsum(draw(values)) / count for draw in drawn(count, resamples, seed))


def _draws(count: int, resamples: int, seed: int) -> Iterator[Draw]:
    random, everyone = Random(seed), range(count)
    for _ in range(resamples):
        yield itemgetter(*random.choices(everyone, k=count))


@lru_cache(4)
def _kept_draws(count: int, resamples: int, seed: int) -> list[Draw]:
    """Return cached draws: all methods of a dataset share them, and drawing is the slowest part."""
    return list(_draws(count, resamples, seed))


def _bounds(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the quantiles that enclose the share LEVEL of the values, with linear
    interpolation."""
    tail = (1 - LEVEL) / 2
    return _quantile(ordered, tail), _quantile(ordered, 1 - tail)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def difference(ours: Sequence[float], theirs: Sequence[float]) -> ScoreDifference:
    """Compare two methods on the same questions, in the same order.

    The paired bootstrap gives the interval and `randomisation` the probability. Raises ValueError
    if there are no values or their numbers differ.
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError("a paired comparison needs the same questions on both sides, and some")
    deltas = [one - other for one, other in zip(ours, theirs, strict=True)]
    mean = math.fsum(deltas) / len(deltas)
    if min(deltas) == max(deltas):
        low = high = mean
    else:
        low, high = _bounds(_resampled(deltas, RESAMPLES, SEED))
    return ScoreDifference(mean, low, high, randomisation(deltas))


def randomisation(deltas: Sequence[float], flips: int = FLIPS) -> float:
    """Return the two-sided probability that the mean of `deltas` is at least as far from 0 if their
    signs were random.

    It is exact if all deltas other than 0 have the same size (McNemar's exact test). Otherwise it
    is estimated from `flips` random draws of signs (approximate randomisation; Noreen, 1989), and
    is at least 1 / (`flips` + 1).
    """
    sizes = [abs(delta) for delta in deltas if abs(delta) > _ALIKE]
    if not sizes:
        return 1.0
    seen = abs(math.fsum(deltas))
    if max(sizes) - min(sizes) < _ALIKE:
        return _sign_test(len(sizes), seen / sizes[0])
    random, total = Random(SEED), math.fsum(sizes)
    width = len(sizes)
    reached = 0
    for _ in range(flips):
        flags = f"{random.getrandbits(width):0{width}b}".encode().translate(_TO_FLAGS)
        reached += abs(total - 2 * sum(compress(sizes, flags))) >= seen - _ALIKE
    return (reached + 1) / (flips + 1)


def _sign_test(count: int, surplus: float) -> float:
    """Return the two-sided probability that heads and tails of `count` fair coins differ by at
    least `surplus`."""
    more = round((count + surplus) / 2)
    if 2 * more <= count:
        return 1.0
    ways = sum(math.comb(count, heads) for heads in range(more, count + 1))
    return min(1.0, ways / (1 << (count - 1)))


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
