"""Element-wise operations of a Llama, with hand-written gradients.

With eager autograd these operations take two thirds of a training step on a CPU, in dozens of
passes over memory; here each takes as few as possible. Shapes: N tokens, B rows, L tokens per row,
H query heads, K key heads, D dimensions per head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class RMSNorm(Function):
    """Divides x [N, W] by the root of its mean square and multiplies by a frozen weight [W]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = norm.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normed: Tensor = x * scale.to(x.dtype)
        return normed.mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        x, weight, scale = ctx.saved_tensors
        given = grads[0] * weight
        along = torch.bmm(given.unsqueeze(1), x.unsqueeze(2)).squeeze(2).float()
        along.mul_(scale.pow(3)).div_(-x.shape[-1])
        return given.mul_(scale.to(x.dtype)).addcmul_(x, along.to(x.dtype)), None, None


class SplitRotate(Function):
    """Splits qkv [B, L, (H + 2K)·D] into q [B·K, (H/K)·L, D], k and v [B·K, L, D], and rotates q
    and k.

    `cosine` and `sine` are [B, L, D/2]. q is multiplied by `scale`, as attention requires.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, heads: int, keys: int, cosine: Tensor, sine: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, length, _ = qkv.shape
        split = qkv.view(rows, length, heads + 2 * keys, -1)
        size = split.shape[-1]
        q = qkv.new_empty(rows, heads, length, size)
        k = qkv.new_empty(rows, keys, length, size)
        _rotate(split[:, :, :heads].transpose(1, 2), q, cosine * scale, sine * scale)
        _rotate(split[:, :, heads : heads + keys].transpose(1, 2), k, cosine, sine)
        v = split[:, :, heads + keys :].transpose(1, 2).reshape(rows * keys, length, size)
        ctx.save_for_backward(cosine, sine)
        ctx.shape, ctx.scale = (rows, length, heads, keys, size), scale
        return q.view(rows * keys, -1, size), k.view(rows * keys, length, size), v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cosine, sine = ctx.saved_tensors
        rows, length, heads, keys, size = ctx.shape
        whole = grads[0].new_empty(rows, length, heads + 2 * keys, size)
        back = whole.transpose(1, 2)
        q, k, v = (grad.view(rows, -1, length, size) for grad in grads)
        _rotate(q, back[:, :heads], cosine * ctx.scale, -sine * ctx.scale)
        _rotate(k, back[:, heads : heads + keys], cosine, -sine)
        back[:, heads + keys :].copy_(v)
        return whole.view(rows, length, -1), None, None, None, None, None


def _rotate(source: Tensor, out: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """Rotate the pairs (i, i + D/2) of the last dimension of [B, heads, L, D], and write them to
    `out`."""
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    half = source.shape[-1] // 2
    left, right = source[..., :half], source[..., half:]
    torch.mul(left, cosine, out=out[..., :half]).addcmul_(right, sine, value=-1)
    torch.mul(right, cosine, out=out[..., half:]).addcmul_(left, sine)


class SwiGLU(Function):
    """Maps [gate, up] [N, 2·M] to silu(gate) · up [N, M]."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        ctx.save_for_backward(both)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None]:
        (both,) = ctx.saved_tensors
        gate, up = both.chunk(2, dim=-1)
        back = torch.empty_like(both)
        to_gate, to_up = back.chunk(2, dim=-1)
        torch.mul(grads[0], torch.nn.functional.silu(gate), out=to_up)
        to_gate.copy_(torch.ops.aten.silu_backward(grads[0] * up, gate))
        return (back,)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Apply `RMSNorm`."""
    normed: Tensor = RMSNorm.apply(x, weight, epsilon)  # type: ignore[no-untyped-call]
    return normed


def split_rotate(
    qkv: Tensor, heads: int, keys: int, turn: tuple[Tensor, Tensor], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply `SplitRotate`. `turn` contains its cosine and sine."""
    parts: tuple[Tensor, Tensor, Tensor] = SplitRotate.apply(  # type: ignore[no-untyped-call]
        qkv, heads, keys, *turn, scale
    )
    return parts


def swiglu(both: Tensor) -> Tensor:
    """Apply `SwiGLU`."""
    mixed: Tensor = SwiGLU.apply(both)  # type: ignore[no-untyped-call]
    return mixed
