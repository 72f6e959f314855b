"""Entropy and log-probability of rows of logits: natural log, whole vocabulary, raw logits."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_LOGITS = 2**24  # of one block of rows: 64 MB in float32


def entropies(logits: Tensor, targets: Tensor | None = None) -> Tensor:
    """(2, rows) in float32: entropies, and log-probabilities of `targets` (rows,).

    Without targets those of the most likely token, which a greedy request takes. A logit of minus
    infinity counts nothing; a NaN makes its row's values NaN.
    """
    rows = max(1, MOST_LOGITS // logits.shape[-1])
    values = [
        _entropies(
            logits[at : at + rows].float(), targets if targets is None else targets[at:][:rows]
        )
        for at in range(0, len(logits), rows)
    ]
    return torch.cat(values, dim=1)


def _entropies(logits: Tensor, targets: Tensor | None) -> Tensor:
    mass = logits.logsumexp(dim=-1)
    if targets is None:
        chosen = logits.amax(dim=-1)
    else:
        chosen = logits.gather(1, targets[:, None]).squeeze(1)
    weights = (logits - mass[:, None]).exp_()
    return torch.stack([torch.special.entr(weights).sum(dim=-1), chosen - mass])
