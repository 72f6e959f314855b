"""The key-value cache of a batch whose rows join and leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

ROOM = 64  # positions written in place before a buffer grows; growing copies it


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A layer that appends in place. `keys` and `values` (rows, heads, length, size) are views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._key_room: Tensor | None = None
        self._value_room: Tensor | None = None

    def fill(self, keys: Tensor, values: Tensor, length: int) -> None:
        """Adopt buffers of which `length` positions are filled."""
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self._key_room, self._value_room = keys, values
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        start = self.get_seq_length() if self.is_initialized else 0
        length = start + key_states.shape[2]
        self._key_room = _roomy(self._key_room, key_states, start, length)
        self._value_room = _roomy(self._value_room, value_states, start, length)
        self.fill(self._key_room, self._value_room, length)
        return self._key_room[:, :, :length], self._value_room[:, :, :length]


def _roomy(room: Tensor | None, states: Tensor, start: int, length: int) -> Tensor:
    if room is None or room.shape[2] < length:
        rows, heads, _, size = states.shape
        larger = states.new_zeros(rows, heads, length + ROOM, size)
        if room is not None:
            larger[:, :, :start] = room[:, :, :start]
        room = larger
    room[:, :, start:length] = states
    return room


def new_cache() -> DynamicCache:
    """Return an empty cache that grows in place."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = RoomyLayer
    return cache


class CachedRow(NamedTuple):
    """The location of one row's states: row `row` of `cache`, positions `start` to `end`."""

    cache: DynamicCache
    row: int
    start: int
    end: int


def merge(rows: Sequence[CachedRow]) -> DynamicCache:
    """Return one cache of all `rows`, right-aligned: row i begins at longest − its own length."""
    longest = max(row.end - row.start for row in rows)
    merged = new_cache()
    layers: list[Any] = rows[0].cache.layers
    for number, layer in enumerate(layers):
        _, heads, _, size = layer.keys.shape
        _, _, _, value_size = layer.values.shape
        keys = layer.keys.new_zeros(len(rows), heads, longest + ROOM, size)
        values = layer.values.new_zeros(len(rows), heads, longest + ROOM, value_size)
        for index, (cache, row, start, end) in enumerate(rows):
            source: Any = cache.layers[number]
            begin = longest - (end - start)
            keys[index, :, begin:longest] = source.keys[row, :, start:end]
            values[index, :, begin:longest] = source.values[row, :, start:end]
        roomy = RoomyLayer()
        roomy.fill(keys, values, longest)
        merged.layers.append(roomy)
    return merged


# The keys and the values (heads, tokens, size) of a stretch of one row, per layer.
Block = list[tuple[Tensor, Tensor]]


def copy_block(place: CachedRow) -> Block:
    cache, row, start, end = place
    layers: list[Any] = cache.layers
    return [
        (layer.keys[row, :, start:end].clone(), layer.values[row, :, start:end].clone())
        for layer in layers
    ]


def block_bytes(block: Block) -> int:
    return sum(keys.nbytes + values.nbytes for keys, values in block)


def begin(rows: Sequence[Sequence[Block]], room: int) -> DynamicCache:
    """Return one cache with `room` positions per row that begins with these blocks, equally many
    for each row.
    """
    cache = new_cache()
    for layer in range(len(rows[0][0]) if rows[0] else 0):
        keys, values = (_joined(rows, layer, side, room) for side in (0, 1))
        roomy = RoomyLayer()
        roomy.fill(keys, values, sum(block[layer][0].shape[1] for block in rows[0]))
        cache.layers.append(roomy)
    return cache


def _joined(rows: Sequence[Sequence[Block]], layer: int, side: int, room: int) -> Tensor:
    heads, _, size = rows[0][0][layer][side].shape
    joined = rows[0][0][layer][side].new_zeros(len(rows), heads, room, size)
    for number, blocks in enumerate(rows):
        states = torch.cat([block[layer][side] for block in blocks], dim=1)
        joined[number, :, : states.shape[1]] = states
    return joined


def padding_mask(lengths: Sequence[int], width: int, device: torch.device) -> Tensor | None:
    """Return (rows, width): 1 where a right-aligned row has states, 0 before. None without
    padding.
    """
    if all(length == width for length in lengths):
        return None
    begins = width - torch.tensor(lengths, device=device)
    return (torch.arange(width, device=device) >= begins[:, None]).long()
