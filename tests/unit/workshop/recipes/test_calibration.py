"""Calibration on numbers that are worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.conftest import need

np = need("numpy")
need("torch", "transformers")

from service.workshop.recipes.router import (  # noqa: E402
    fit_temperature,
    negative_log_likelihood,
)
from tests.benchmarks.reliability import (  # noqa: E402
    ProbabilityBin,
    confusion_table,
    expected_calibration_error,
    reliability,
    reliability_plot,
)


def test_the_likelihood_of_labels() -> None:
    logits = [[math.log(3), 0.0], [0.0, 0.0]]
    assert negative_log_likelihood(logits, [0, 1], 1.0) == pytest.approx(
        -(math.log(0.75) + math.log(0.5)) / 2
    )
    hotter = 1 / (1 + math.sqrt(1 / 3))
    assert negative_log_likelihood(logits[:1], [0], 2.0) == pytest.approx(-math.log(hotter))


@pytest.mark.parametrize(("right", "margin"), [(3, 6.0), (3, 0.2), (2, 4.0)])
def test_the_temperature_makes_the_mean_probability_the_share_that_is_right(
    right: int, margin: float
) -> None:
    """Of four rows with one margin, `right` are right: the best probability is right / 4, so the
    margin over the temperature is its logit."""
    logits = np.array([[margin, 0.0]] * 4)
    labels = [0] * right + [1] * (4 - right)
    logit = math.log(right / (4 - right)) if right > 2 else 0.0
    wanted = margin / logit if logit else 20.0
    assert fit_temperature(logits, labels) == pytest.approx(wanted, rel=1e-3)


def test_reliability_by_hand() -> None:
    bins = reliability([0.95, 0.91, 0.55, 1.0], [True, False, True, True])
    assert [(each.low, each.size, each.accuracy) for each in bins] == [
        (0.5, 1, 1.0), (0.9, 3, 2 / 3),
    ]  # fmt: skip
    assert bins[1].confidence == pytest.approx((0.95 + 0.91 + 1.0) / 3)
    error = (abs(1 - 0.55) + 3 * abs(2 / 3 - 2.86 / 3)) / 4
    assert expected_calibration_error(bins) == pytest.approx(error)


def test_a_perfect_classifier_has_no_calibration_error() -> None:
    assert expected_calibration_error(reliability([1.0, 1.0], [True, True])) == 0


def test_the_plot_marks_share_and_probability() -> None:
    lines = reliability_plot([ProbabilityBin(0.5, 0.6, 8, 0.55, 0.25)], width=20).splitlines()
    assert lines[1] == "0.5-0.6         8  0.25  #####      |"


def test_the_confusion_table_has_the_truth_in_rows() -> None:
    table = confusion_table([("a", "a"), ("b", "a"), ("b", "b")], ("a", "b"))
    assert table.splitlines()[2:] == ["| a | 1 | 1 |", "| b | 0 | 1 |"]
