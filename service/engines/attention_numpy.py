"""Attention from queries and cached keys, maxima over its rows, and entropies of logits, in numpy.

`service.engines.attention_torch` has the same in torch, for GPUs and for vLLM.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_WEIGHTS = 2**24  # float32 values in one block of rows: 64 MB
MOST_LOGITS = 2**24
Array = NDArray[Any]


def attention_rows(query: Array, keys: Array, first: int, scale: float) -> Array:
    """Return causal softmax weights of shape (heads, rows, n) in float32.

    `query` (heads, rows, size) holds the positions from `first` on; `keys` (kv_heads, n, size)
    holds positions 0 to n - 1, with n = first + rows. Query head h uses key-value head h // (heads
    / kv_heads).
    """
    heads, rows, size = query.shape
    kv_heads, length, _ = keys.shape
    grouped = query.reshape(kv_heads, heads // kv_heads * rows, size)
    scores = np.matmul(grouped, keys.transpose(0, 2, 1)).reshape(heads, rows, length) * scale
    if rows > 1:
        later = np.arange(length) > (first + np.arange(rows))[:, None]
        scores = np.where(later, -np.inf, scores)
    weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def rows_per_block(heads: int, length: int) -> int:
    """Return how many rows to compute at once over `length` keys."""
    return max(1, MOST_WEIGHTS // (heads * length))


def entropies(logits: Array) -> Array:
    """Return (2, rows), in nats: entropies, and log-probabilities of the most likely tokens, which
    a greedy request chooses.

    Both are over the whole vocabulary, from raw logits (rows, vocabulary).
    """
    found = np.empty((2, len(logits)), np.float32)
    size = max(1, MOST_LOGITS // logits.shape[-1])
    for at in range(0, len(logits), size):
        block = logits[at : at + size].astype(np.float32, copy=False)
        shifted = block - block.max(axis=-1, keepdims=True)
        weights = np.exp(shifted)
        mass = weights.sum(axis=-1)
        logs = shifted - np.log(mass)[:, None]
        # a logit of minus infinity contributes nothing
        terms = np.where(weights > 0, weights * logs, 0)
        found[0, at : at + size] = -terms.sum(axis=-1) / mass
        found[1, at : at + size] = logs.max(axis=-1)
    return found


class Maxima:
    """Running maxima of attention over queries, per head and key: over q >= k, and over q > k.

    `fold` takes rows in order of position, in blocks of any size. A row counts only the keys from
    the first watched one on (for a draft, its first token). Memory: 8 bytes * heads * capacity.
    """

    def __init__(self, heads: int, capacity: int) -> None:
        self.size = 0
        self._state = np.zeros((2, heads, capacity), np.float32)

    def fold(self, weights: Array) -> None:
        """Add the next rows (heads, rows, size + rows), in which keys after a row's own position
        are 0.
        """
        rows = weights.shape[1]
        end = self.size + rows
        whole, later = self._state[0, :, :end], self._state[1, :, :end]
        np.maximum(whole, weights.max(axis=1), out=whole)
        others = weights.copy()
        own = np.arange(rows)
        others[:, own, self.size + own] = 0
        np.maximum(later, others.max(axis=1), out=later)
        self.size = end

    def means(self) -> Array:
        """Return the means over heads, (2, size), of the maxima over q >= k and over q > k."""
        means: Array = self._state[:, :, : self.size].mean(axis=1)
        return means
