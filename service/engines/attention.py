"""Attention from queries and cached keys, maxima over its rows, and entropies of logits.

The arrays are numpy's, in the engines of this process, or torch's, in vLLM. `xp` is the module of
the array; only functions that both modules have are used.
"""

from __future__ import annotations

from typing import Any, Final

MOST_WEIGHTS: Final = 2**24  # values in one block of rows: 64 MB in float32
MOST_LOGITS: Final = 2**24


def attention_rows(query: Any, keys: Any, first: int, scale: float, xp: Any) -> Any:
    """Return causal softmax weights in float32, as transformers' eager attention computes them.

    `query` (heads, rows, size) holds the positions from `first` on; `keys` (kv_heads, size, n)
    holds positions 0 to n - 1, with n = first + rows. Query head h uses key-value head h // (heads
    / kv_heads). Returns (heads, rows, n).
    """
    heads, rows, size = query.shape
    kv_heads, _, length = keys.shape
    grouped = query.reshape(kv_heads, heads // kv_heads * rows, size)
    scores = (grouped @ keys).reshape(heads, rows, length) * scale
    if rows > 1:
        places = xp.arange(length, device=scores.device)
        scores = xp.where(places > places[first:, None], float("-inf"), scores)
    weights = xp.exp(scores - xp.amax(scores, -1, keepdims=True))
    weights /= xp.sum(weights, -1, keepdims=True)
    return weights


def rows_per_block(heads: int, length: int) -> int:
    """Return how many rows to compute at once over `length` keys."""
    return max(1, MOST_WEIGHTS // (heads * length))


def entropies(logits: Any, xp: Any) -> Any:
    """Return (2, rows) in float32, in nats: entropies, and log-probabilities of the most likely
    tokens, which a greedy request chooses.

    Both are over the whole vocabulary, from raw logits (rows, vocabulary). A logit of minus
    infinity contributes nothing; a NaN makes its row's values NaN.
    """
    rows = max(1, MOST_LOGITS // logits.shape[-1])
    values = []
    for at in range(0, len(logits), rows):
        block = xp.asarray(logits[at : at + rows], dtype=xp.float32)
        shifted = block - xp.amax(block, -1, keepdims=True)
        weights = xp.exp(shifted)
        mass = xp.sum(weights, -1)
        terms = xp.where(weights > 0, weights * shifted, 0.0)
        log_mass = xp.log(mass)
        values.append(xp.stack([log_mass - xp.sum(terms, -1) / mass, -log_mass]))
    return xp.concatenate(values, 1)


def maxima_over(weights: Any, before: Any | None, xp: Any) -> Any:
    """Return the maximum per head and key, (heads, keys), of rows (heads, rows, keys) and of those
    `before`: what this function returned for rows with as many keys or fewer, if there are any.
    """
    maxima = xp.amax(weights, 1)
    if before is not None:
        known = maxima[:, : before.shape[1]]
        xp.maximum(known, before, out=known)
    return maxima
