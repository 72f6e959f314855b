"""The key-value cache of the rows that are running."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from service.engines.compiled import ModelShape

ROOM: Final = 128  # fewest positions of a slot
GROWTH: Final = 1.5
# Positions that use memory may be so many times those that are kept, and so many more.
WASTE: Final = 1.5
SLACK: Final = 2048

Array = NDArray[Any]


class Slots:
    """The keys and values of each layer, (slots, kv_heads, room, size), in the order of the graph's
    inputs.

    Memory is used only for positions that were written. Where most of these are not needed any
    longer, the others are copied to fresh memory. Slots `first` to `first` + `count` are one block
    of memory, so any range of them is a batch.
    """

    def __init__(self, shape: ModelShape) -> None:
        self.position_bytes = 2 * shape.layers * shape.kv_heads * shape.head_size * 4
        self._shape = shape
        self._slots = 0
        self._room = 0
        self._buffers: list[Array] = []
        self._written: list[int] = []  # positions of each slot that use memory

    def reserve(self, room: int, filled: list[int]) -> None:
        """Provide a slot for each of `filled`, the number of its positions to keep, with at least
        `room` positions.
        """
        wasteful, room = self._note(filled), max(room, *filled)
        if len(filled) <= self._slots and room <= self._room and not wasteful:
            return
        slots, most = (0, 0) if wasteful else (self._slots, self._room)
        self._slots = slots if len(filled) <= slots else int(len(filled) * GROWTH)
        grown = most if room <= most else int(room * GROWTH)
        self._room = min(max(grown, ROOM), self._shape.context)
        self._move(filled)

    def _note(self, filled: list[int]) -> bool:
        """Note what is written. Returns whether much of it is not needed any longer."""
        self._written += [0] * (len(filled) - len(self._written))
        for slot, length in enumerate(filled):
            self._written[slot] = max(self._written[slot], length)
        return sum(self._written) > WASTE * sum(filled) + SLACK

    def _move(self, filled: list[int]) -> None:
        """Copy what is to be kept to fresh memory, one buffer after the other."""
        size = (self._slots, self._shape.kv_heads, self._room, self._shape.head_size)
        old, self._buffers = self._buffers[::-1], []
        for _ in range(2 * self._shape.layers):
            fresh = _empty(size)
            if old:  # there are no buffers at first
                source = old.pop()
                for slot, length in enumerate(filled[: len(source)]):
                    fresh[slot, :, :length] = source[slot, :, :length]
            self._buffers.append(fresh)
        self._written = list(filled)

    def views(self, first: int, count: int) -> list[Array]:
        return [buffer[first : first + count] for buffer in self._buffers]

    def keys(self, slot: int, length: int) -> Array:
        """Return the keys of the last layer: (kv_heads, length, size)."""
        keys: Array = self._buffers[-2][slot, :, :length]
        return keys

    def move(self, source: int, target: int, length: int) -> None:
        """Copy one slot to another."""
        if source != target and length:
            for buffer in self._buffers:
                buffer[target, :, :length] = buffer[source, :, :length]

    def block(self, slot: int, start: int, end: int) -> Array:
        """Copy the positions from `start` to `end`: (2 x layers, kv_heads, positions, size)."""
        return np.stack([buffer[slot, :, start:end] for buffer in self._buffers])

    def put(self, slot: int, start: int, block: Array) -> None:
        """Write a copied block at the positions from `start` on."""
        for buffer, states in zip(self._buffers, block, strict=True):
            buffer[slot, :, start : start + states.shape[1]] = states

    def clear(self) -> None:
        """Free the memory."""
        self._slots = self._room = 0
        self._buffers, self._written = [], []


def _empty(size: tuple[int, ...]) -> Array:
    """Return zeros in float32 that use memory page by page, where they are written.

    numpy asks the kernel for pages of 2 MB, of which one position of a slot would use a whole one.
    """
    memory = mmap.mmap(-1, prod(size) * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux, of which some kernels have no huge pages
        with suppress(OSError):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float32).reshape(size)
