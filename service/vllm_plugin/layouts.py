"""Where a backend's cache has its keys: layouts recognised by their content."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CHECKED = 8  # number of keys of the batch that are searched for
UNKNOWN = (
    "the attention keys just written were not found in the cache, whose layout is unknown; try "
    "another attention backend or --dtype"
)


# Returns the keys (n, kv_heads, size, block) of some blocks (n,) of a cache, given their size.
Layout = Callable[[Tensor, Tensor, int], Tensor]


def block_size(layout: Layout, cache: Tensor, size: int) -> int:
    none = torch.zeros(0, dtype=torch.long, device=cache.device)
    return layout(cache, none, size).shape[-1]


def _cpu_transposed(cache: Tensor, blocks: Tensor, size: int) -> Tensor:
    """(blocks, kv_heads, block, 2 * size): the first half keys as (size, block), `vec` kernels."""
    count, heads, block, _ = cache.shape
    halves = cache.view(count, heads, 2, size, block)
    return halves[:, :, 0].index_select(0, blocks)


def _cpu_plain(cache: Tensor, blocks: Tensor, size: int) -> Tensor:
    """(blocks, kv_heads, block, 2 * size): the first half keys as (block, size)."""
    count, heads, block, _ = cache.shape
    halves = cache.view(count, heads, 2, block, size)
    return halves[:, :, 0].index_select(0, blocks).transpose(2, 3)


def _packed(cache: Tensor, blocks: Tensor, size: int) -> Tensor:
    """(blocks, kv_heads, block, 2 * size): a key, then its value; FlashAttention of vLLM 0.32."""
    return cache[..., :size].index_select(0, blocks).transpose(2, 3)


def _stacked(cache: Tensor, blocks: Tensor, size: int) -> Tensor:
    """(2, blocks, block, kv_heads, size): FlashAttention of earlier versions."""
    return cache[0].index_select(0, blocks).permute(0, 2, 3, 1)


def _interleaved(cache: Tensor, blocks: Tensor, size: int) -> Tensor:
    """(blocks, 2, block, kv_heads, size): FlashInfer and Triton."""
    return cache[:, 0].index_select(0, blocks).permute(0, 2, 3, 1)


LAYOUTS = (_cpu_transposed, _cpu_plain, _packed, _stacked, _interleaved)


def find_layout(cache: Tensor, key: Tensor, slots: Tensor) -> Layout | None:
    """Return the layout in which `key` (rows, kv_heads, size) lies at `slots` (rows,), None if that
    may be several. Raises LookupError if it is none.

    A slot is block * block size + place in the block; negative slots are padding. Layouts differ in
    the place of a block's second key, so first keys alone may fit several of them.
    """
    real = (slots >= 0).nonzero().flatten()[:CHECKED]
    key, slots = key[real], slots[real]
    if not len(slots):
        return None
    fitting = [layout for layout in LAYOUTS if _fits(layout, cache, key, slots)]
    if not fitting:
        raise LookupError(UNKNOWN)
    return fitting[0] if len(fitting) == 1 else None


def _fits(layout: Layout, cache: Tensor, key: Tensor, slots: Tensor) -> bool:
    size, heads = key.shape[-1], key.shape[-2]
    try:
        block = block_size(layout, cache, size)
        picked = layout(cache, slots // block, size)
    except (RuntimeError, IndexError, ValueError):  # the cache has another shape
        return False
    if picked.shape[1:] != (heads, size, block):
        return False
    rows = torch.arange(len(slots), device=slots.device)
    return torch.equal(picked[rows, :, :, slots % block], key.to(picked.dtype))
