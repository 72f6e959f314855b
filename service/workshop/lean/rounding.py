"""Quantisation-aware training: the forward pass uses the weights that `revelator compile` writes.

The gradient at the rounded weights is applied to float32 copies (the straight-through estimator,
Bengio et al. 2013, arXiv:1308.3432), so that training compensates for the error of 4 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from service.core.errors import ConfigurationError
from service.workshop.compilation.quantisation import BLOCK, SMALLEST

HIGHEST: Final = 15  # highest code of 4 bits


def rounded(weight: Tensor) -> Tensor:
    """Return `weight` [out, in] rounded to the nearest values that 4 bits can express, in float32.

    Each block of `BLOCK` weights of a row has a float16 scale and an integer zero point, as in
    `quantisation.quantise`, which finds the same codes for the result.
    """
    blocks = weight.view(-1, BLOCK)
    low = blocks.amin(1, keepdim=True).clamp_(max=0)
    high = blocks.amax(1, keepdim=True).clamp_(min=0)
    scale = _half_down(high.sub_(low).div_(HIGHEST).clamp_(min=SMALLEST))
    zero = low.neg_().div_(scale).sub_(0.5).ceil_().clamp_(0, HIGHEST)
    # The scale is rounded down, halves to the lower zero point and the higher code. Both ends of a
    # range thus have the codes 0 and 15, from which `quantise` derives the same scale.
    codes = (blocks / scale).add_(zero).add_(0.5).floor_().clamp_(0, HIGHEST)
    return codes.sub_(zero).mul_(scale).view_as(weight)


def _half_down(scale: Tensor) -> Tensor:
    """Return the largest float16 values not above the positive `scale`, in float32."""
    near = scale.half()
    # One step down from a positive float16 is one less in its bits.
    return (near.view(torch.int16) - (near.float() > scale).short()).view(torch.float16).float()


def check_blocks(weights: Sequence[Tensor]) -> None:
    """Raise ConfigurationError if the rows of a matrix [out, in] are not a whole number of
    blocks."""
    if odd := next((w.shape[1] for w in weights if w.shape[1] % BLOCK), None):
        raise ConfigurationError(
            f"weight_bits: a matrix of the model has rows of {odd} weights; 4 bits need a multiple "
            f"of {BLOCK}. Leave weight_bits unset"
        )
