"""Fit the temperature at which a classifier's probabilities match its accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np

COLDEST, HOTTEST = 0.05, 20.0


def negative_log_likelihood(logits: Any, labels: Any, temperature: float) -> float:
    """Return the mean negative log-likelihood, in nats, of `labels` (rows,) under the softmax of
    `logits` / `temperature`."""
    scaled = np.asarray(logits, np.float64) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    chances = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    return float(-chances[np.arange(len(chances)), labels].mean())


def fit_temperature(logits: Any, labels: Any) -> float:
    """Return the temperature from 0.05 to 20 that maximises the likelihood of `labels` (Guo et al.
    2017).

    Uses golden-section search over the logarithm of the temperature, in which the loss has one
    minimum.
    """
    shrink = (5**0.5 - 1) / 2
    low, high = np.log(COLDEST), np.log(HOTTEST)
    while high - low > 1e-4:
        left, right = high - shrink * (high - low), low + shrink * (high - low)
        if negative_log_likelihood(logits, labels, np.exp(left)) < negative_log_likelihood(
            logits, labels, np.exp(right)
        ):
            high = right
        else:
            low = left
    return float(np.exp((low + high) / 2))
