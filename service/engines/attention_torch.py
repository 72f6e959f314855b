"""Attention of the last layer, maxima over its rows, and entropies of logits, in torch.

`service.engines.attention_numpy` has the same in numpy, for the embedded engine.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_WEIGHTS = 2**24  # values in one block of rows: 64 MB in float32


def attention_rows(query: Tensor, keys: Tensor, first: int, scale: float) -> Tensor:
    """Return causal softmax weights in float32, as transformers' eager attention computes them.

    `query` (rows, heads, size) holds the positions from `first` on; `keys` (kv_heads, size, n)
    holds positions 0 to n - 1, with n = first + rows. Query head h uses key-value head h // (heads
    / kv_heads). Returns (heads, rows, n).
    """
    rows, heads, size = query.shape
    kv_heads, _, length = keys.shape
    grouped = query.float().view(rows, kv_heads, heads // kv_heads, size).permute(1, 2, 0, 3)
    scores = torch.bmm(grouped.reshape(kv_heads, -1, size), keys.float()) * scale
    scores = scores.view(heads, rows, length)
    if rows > 1:
        places = torch.arange(length, device=keys.device)
        scores.masked_fill_(places > places[first:, None], float("-inf"))
    return scores.softmax(dim=-1)


def decode_rows(query: Tensor, keys: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Return the attention weights of the last positions of several requests, in float32.

    `query` is (requests, heads, size). `keys` (requests, blocks, kv_heads, size, block) are
    gathered by the block table; all beyond `lengths` (requests,) is padding. Returns (requests,
    heads, blocks * block), which is 0 in the padding.
    """
    requests, blocks, kv_heads, size, block = keys.shape
    grouped = query.float().view(requests, 1, kv_heads, -1, size)
    scores = torch.matmul(grouped, keys.float()).permute(0, 2, 3, 1, 4)
    scores = scores.reshape(requests, -1, blocks * block) * scale
    places = torch.arange(blocks * block, device=keys.device)
    scores.masked_fill_((places >= lengths[:, None])[:, None], float("-inf"))
    return scores.softmax(dim=-1)


def rows_per_block(heads: int, length: int) -> int:
    """Return how many rows to compute at once over `length` keys."""
    return max(1, MOST_WEIGHTS // (heads * length))


class Maxima:
    """Running maxima of attention over queries, per head and key: over q >= k, and over q > k.

    `fold` takes rows in order of position, in blocks of any size. A row counts only the keys from
    the first watched one on (for a draft, its first token). Memory: 8 bytes * heads * capacity.
    """

    def __init__(self, heads: int, capacity: int, device: torch.device) -> None:
        self.size = 0
        self._state = torch.zeros(2, heads, capacity, device=device)

    def fold(self, weights: Tensor) -> None:
        """Add the next rows (heads, rows, size + rows), in which keys after a row's own position
        are 0.
        """
        rows = weights.shape[1]
        end = self.size + rows
        whole, later = self._state[0, :, :end], self._state[1, :, :end]
        torch.maximum(whole, weights.amax(dim=1), out=whole)
        others = weights.clone()
        others[:, :, self.size :].diagonal(dim1=1, dim2=2).zero_()
        torch.maximum(later, others.amax(dim=1), out=later)
        self.size = end

    @property
    def nbytes(self) -> int:
        return self._state.numel() * self._state.element_size()

    def means(self) -> Tensor:
        """Return the means over heads, (2, size), of the maxima over q >= k and over q > k."""
        return self._state[:, :, : self.size].mean(dim=1)


MOST_LOGITS = 2**24  # values in one block of rows: 64 MB in float32


def entropies(logits: Tensor) -> Tensor:
    """Return (2, rows) in float32, in nats: entropies, and log-probabilities of the most likely
    tokens, which a greedy request chooses.

    A logit of minus infinity contributes nothing; a NaN makes its row's values NaN.
    """
    rows = max(1, MOST_LOGITS // logits.shape[-1])
    values = []
    for at in range(0, len(logits), rows):
        block = logits[at : at + rows].float()
        mass = block.logsumexp(dim=-1)
        weights = (block - mass[:, None]).exp_()
        entropy = torch.special.entr(weights).sum(dim=-1)
        values.append(torch.stack([entropy, block.amax(dim=-1) - mass]))
    return torch.cat(values, dim=1)
