"""Intervals and paired tests, against values that are known in closed form."""

from __future__ import annotations

import math
from random import Random

import pytest

from service.evaluation.comparison import (
    FLIPS,
    LEVEL,
    difference,
    flips_of,
    holm,
    interval,
    randomisation,
)


def test_the_interval_of_the_mean_of_a_known_sample() -> None:
    """0, 1, …, 100: mean 50, standard deviation √850, 101 values: 50 ± 1.96 · 2.901."""
    found = interval([float(n) for n in range(101)], resamples=4_000)
    assert found.mean == 50
    assert found.low == pytest.approx(50 - 1.96 * math.sqrt(850 / 101), abs=0.4)
    assert found.high == pytest.approx(50 + 1.96 * math.sqrt(850 / 101), abs=0.4)


def test_the_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    random = Random(1)
    samples = [[float(random.random() < 0.3) for _ in range(60)] for _ in range(200)]
    held = sum(found.low <= 0.3 <= found.high for found in (interval(s, 300) for s in samples))
    assert 178 <= held <= 199


def test_few_questions_that_are_all_right_do_not_prove_perfection() -> None:
    """Wilson's interval of 20 of 20: 20 / (20 + 1.96²) = 0.839."""
    found = interval([1.0] * 20)
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.8389, abs=1e-4)
    wrong = interval([0.0] * 20)
    assert (wrong.low, wrong.high) == (0.0, pytest.approx(1 - 0.8389, abs=1e-4))
    half = interval([0.5] * 4)
    assert (half.low, half.high) == (0.5, 0.5)


def test_an_interval_needs_values() -> None:
    with pytest.raises(ValueError, match="needs values"):
        interval([])


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [(10, 0, 2 / 2**10), (8, 2, 2 * 56 / 2**10), (5, 5, 1.0), (9, 3, 2 * 299 / 2**12), (0, 0, 1.0)],
)
def test_right_and_wrong_are_compared_by_the_exact_test(better: int, worse: int, p: float) -> None:
    """Two-sided McNemar's test on the discordant questions, as in its tables."""
    deltas = [1.0] * better + [-1.0] * worse + [0.0] * 30
    assert randomisation(deltas) == pytest.approx(p)
    assert randomisation([-delta for delta in deltas]) == pytest.approx(p)


def test_random_signs_come_near_all_signs() -> None:
    """Fisher's test over all 2¹² signs of Darwin's kind of paired differences."""
    deltas = [0.4, -0.1, 0.3, 0.25, 0.6, -0.2, 0.5, 0.15, 0.35, -0.05, 0.45, 0.1]
    seen = abs(math.fsum(deltas))
    sums = [
        abs(math.fsum(d if signs >> place & 1 else -d for place, d in enumerate(deltas)))
        for signs in range(2**12)
    ]
    exact = sum(total >= seen - 1e-9 for total in sums) / 2**12
    assert randomisation(deltas) == pytest.approx(exact, abs=0.004)


def test_a_clear_difference_is_significant_among_any_number_of_pairs() -> None:
    deltas = [0.5 + n / 100 for n in range(40)]
    assert randomisation(deltas) == randomisation(deltas, flips_of(100)) == 1 / (FLIPS + 1)
    pairs = 600
    p = randomisation(deltas, flips_of(pairs))
    assert holm([p, *[1.0] * (pairs - 1)])[0] < 1 - LEVEL


def test_a_method_that_is_better_on_the_same_questions() -> None:
    ours = [1.0] * 60 + [0.0] * 40
    theirs = [1.0] * 40 + [0.0] * 60
    found = difference(ours, theirs)
    assert found.mean == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2 - 1.96 * 0.04, abs=0.015)
    assert found.better
    assert not difference(theirs, ours).better


def test_equal_methods_do_not_differ() -> None:
    found = difference([0.5, 1.0], [0.5, 1.0])
    assert (found.mean, found.low, found.high, found.p) == (0, 0, 0, 1)
    assert not found.better


def test_other_questions_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="the same questions"):
        difference([1.0], [1.0, 0.0])


def test_many_tests_are_corrected_step_by_step() -> None:
    """The example of Holm's procedure: each is multiplied by the number of those left."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
