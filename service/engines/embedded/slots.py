"""The key-value cache: one slot per row of the batch, which the graph writes in place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engines.compiled.card import ModelShape

ROOM = 128  # positions that a slot has at least
GROWTH = 1.5

Array = NDArray[Any]


class Slots:
    """Per layer keys and values (slots, kv_heads, room, size), in the order of the graph's inputs.

    Room is reserved and not touched: memory is taken for the positions that are written. Slots
    `first` to `first` + `count` are one block of memory each, so any stretch of them is a batch.
    """

    def __init__(self, shape: ModelShape) -> None:
        self._shape = shape
        self._slots = 0
        self._room = 0
        self._buffers: list[Array] = []

    def reserve(self, slots: int, room: int, filled: list[int]) -> None:
        """Have at least so many slots and positions. `filled`: positions to keep, slot by slot."""
        if slots <= self._slots and room <= self._room:
            return
        if slots > self._slots:
            self._slots = max(slots, int(self._slots * GROWTH))
        if room > self._room:
            grown = max(ROOM, room, int(self._room * GROWTH))
            self._room = min(grown, self._shape.context)
        size = (self._slots, self._shape.kv_heads, self._room, self._shape.head_size)
        fresh = [np.empty(size, np.float32) for _ in range(2 * self._shape.layers)]
        for old, new in zip(self._buffers, fresh, strict=False):  # there are none at first
            for slot, length in enumerate(filled[: len(old)]):
                new[slot, :, :length] = old[slot, :, :length]
        self._buffers = fresh

    def views(self, first: int, count: int) -> list[Array]:
        return [buffer[first : first + count] for buffer in self._buffers]

    def keys(self, slot: int, length: int) -> Array:
        """Of the last layer: (kv_heads, length, size)."""
        keys: Array = self._buffers[-2][slot, :, :length]
        return keys

    def move(self, source: int, target: int, length: int) -> None:
        """Put what one slot holds into another."""
        if source != target and length:
            for buffer in self._buffers:
                buffer[target, :, :length] = buffer[source, :, :length]

    def clear(self) -> None:
        """Give the memory back."""
        self._slots = self._room = 0
        self._buffers = []
