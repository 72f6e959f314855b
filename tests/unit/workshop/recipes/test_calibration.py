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
