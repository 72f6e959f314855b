"""Quantise weights to integers with a scale and a zero point per block, for ONNX Runtime's
`MatMulNBits`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 32  # weights of a row that share a scale
SHRINKAGES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8)  # fractions of a block's range that are tried
SMALLEST = 6e-8  # smallest scale in float16
ROWS_AT_ONCE = 4096
DAMPING = 0.01  # share of the mean second moment that is added to each moment

Bits = Literal[4, 8]
Array = NDArray[Any]


class Quantised(NamedTuple):
    """A quantised matrix (rows, columns). A weight is its scale times the difference of its code
    and its zero point.

    `codes` is uint8 (rows, blocks, BLOCK * bits / 8) and `scales` float16 (rows, blocks). With 4
    bits, `zeros` is uint8 (rows, blocks / 2), two per byte. With 8 bits it is None, because all
    zero points are 128.
    """

    codes: Array
    scales: Array
    zeros: Array | None


def quantise(weights: Array, bits: Bits, moments: Array | None = None) -> Quantised:
    """Return the codes closest to `weights` (rows, columns). The number of columns must be a
    multiple of BLOCK.

    With 4 bits, several ranges are tried per block, and the one with the least squared error is
    chosen. Given the second moments (columns, columns) of the inputs, the columns that are not yet
    rounded compensate for the error of those that are (GPTQ, Frantar et al. 2022).
    """
    rows, columns = weights.shape
    if columns % BLOCK:
        raise ValueError(f"a matrix of {columns} columns; a multiple of {BLOCK} is needed")
    if bits == 4 and moments is not None:
        return _making_up(weights.astype(np.float32), _influence(moments))
    make = _in_four_bits if bits == 4 else _in_eight_bits
    parts = [
        make(
            weights[at : at + ROWS_AT_ONCE].astype(np.float32).reshape(-1, columns // BLOCK, BLOCK)
        )
        for at in range(0, rows, ROWS_AT_ONCE)
    ]
    codes, scales, zeros = (np.concatenate(each) for each in zip(*parts, strict=True))
    if bits == 8:
        return Quantised(codes, scales, None)
    return Quantised(_paired(codes), scales, _paired(zeros))


def dequantise(made: Quantised) -> Array:
    """Return the weights (rows, columns) in float32 that the codes represent."""
    rows, blocks = made.scales.shape
    if made.zeros is None:
        whole = made.codes.astype(np.float32) - 128
    else:
        zeros = _unpaired(made.zeros)[:, :blocks, None].astype(np.float32)
        whole = _unpaired(made.codes).astype(np.float32) - zeros
    values: Array = whole * made.scales.astype(np.float32)[..., None]
    return values.reshape(rows, -1)


def _in_four_bits(blocks: Array) -> tuple[Array, Array, Array]:
    low, high = np.minimum(blocks.min(axis=2), 0), np.maximum(blocks.max(axis=2), 0)
    best = np.zeros_like(blocks)
    scales = np.zeros_like(low, np.float16)
    zeros = np.zeros_like(low)
    least = np.full_like(low, np.inf)
    for shrinkage in SHRINKAGES:
        scale = np.maximum((high - low) * shrinkage / 15, SMALLEST).astype(np.float16)
        wide = scale.astype(np.float32)
        zero = np.clip(np.rint(-low * shrinkage / wide), 0, 15)
        codes = np.clip(np.rint(blocks / wide[..., None]) + zero[..., None], 0, 15)
        error = (((codes - zero[..., None]) * wide[..., None] - blocks) ** 2).sum(axis=2)
        better = error < least
        least = np.where(better, error, least)
        best = np.where(better[..., None], codes, best)
        scales, zeros = np.where(better, scale, scales), np.where(better, zero, zeros)
    return best.astype(np.uint8), scales, zeros.astype(np.uint8)


def _influence(moments: Array) -> Array:
    """Return the upper Cholesky factor of the inverse of the damped moments.

    It determines how later columns compensate for a column's error.
    """
    whole = moments.astype(np.float64)
    whole[np.diag_indices_from(whole)] += DAMPING * np.mean(np.diag(whole)) + SMALLEST
    inverse = np.linalg.inv(whole)
    return np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)


def _making_up(weights: Array, influence: Array) -> Quantised:
    left = weights.copy()  # the targets of the columns, with the errors before them compensated
    parts = []
    for at in range(0, weights.shape[1], BLOCK):
        behind = at + BLOCK
        _, scales, zeros = _in_four_bits(left[:, None, at:behind])
        scale, zero = scales.astype(np.float32)[:, 0], zeros.astype(np.float32)[:, 0]
        codes = np.zeros((len(left), 1, BLOCK), np.uint8)
        errors = np.zeros((len(left), BLOCK), np.float32)
        for column in range(BLOCK):
            place = at + column
            code = np.clip(np.rint(left[:, place] / scale) + zero, 0, 15)
            codes[:, 0, column] = code
            error = (left[:, place] - (code - zero) * scale) / influence[place, place]
            left[:, place:behind] -= np.outer(error, influence[place, place:behind])
            errors[:, column] = error
        left[:, behind:] -= errors @ influence[at:behind, behind:]
        parts.append((codes, scales, zeros))
    codes, scales, zeros = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    return Quantised(_paired(codes), scales, _paired(zeros))


def _in_eight_bits(blocks: Array) -> tuple[Array, Array, Array]:
    scales = np.maximum(np.abs(blocks).max(axis=2) / 127, SMALLEST).astype(np.float16)
    codes = np.rint(blocks / scales.astype(np.float32)[..., None])
    return (np.clip(codes, -128, 127) + 128).astype(np.uint8), scales, np.zeros((len(blocks), 0))


def _paired(codes: Array) -> Array:
    """Pack two 4-bit codes per byte, the first in the lower half."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    packed: Array = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed


def _unpaired(packed: Array) -> Array:
    codes = np.stack([packed & 15, packed >> 4], axis=-1)
    return codes.reshape(*packed.shape[:-1], -1)
