"""The key-value cache, and one forward pass of the graph over a stretch of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.core.onnx import open_onnx
from service.engines.compiled import (
    ENDS,
    IDS,
    LOGITS,
    POSITIONS,
    QUERIES,
    TOTAL,
    WANTED,
    ModelShape,
    past,
    present,
)

ROOM = 128  # fewest positions of a slot
GROWTH = 1.5

Array = NDArray[Any]


class Slots:
    """The keys and values of each layer, (slots, kv_heads, room, size), in the order of the graph's
    inputs.

    Reserved room is not touched, so memory is used only for positions that are written. Slots
    `first` to `first` + `count` are one block of memory, so any range of them is a batch.
    """

    def __init__(self, shape: ModelShape) -> None:
        self._shape = shape
        self._slots = 0
        self._room = 0
        self._buffers: list[Array] = []

    def reserve(self, slots: int, room: int, filled: list[int]) -> None:
        """Provide at least so many slots and positions. `filled` is the number of positions to
        keep, slot by slot.
        """
        if slots <= self._slots and room <= self._room:
            return
        if slots > self._slots:
            self._slots = max(slots, int(self._slots * GROWTH))
        if room > self._room:
            grown = max(ROOM, room, int(self._room * GROWTH))
            self._room = min(grown, self._shape.context)
        size = (self._slots, self._shape.kv_heads, self._room, self._shape.head_size)
        fresh = [np.empty(size, np.float32) for _ in range(2 * self._shape.layers)]
        for old, new in zip(self._buffers, fresh, strict=False):  # there are no buffers at first
            for slot, length in enumerate(filled[: len(old)]):
                new[slot, :, :length] = old[slot, :, :length]
        self._buffers = fresh

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
        self._buffers = []


class Network:
    """An ONNX Runtime session. Raises the library's errors for a file that is not such a graph."""

    def __init__(self, model: Path, shape: ModelShape, *, threads: int) -> None:
        self.shape = shape
        self._session = open_onnx(model, threads, spinning=True)
        pairs = [(layer, kind) for layer in range(shape.layers) for kind in ("key", "value")]
        self._cache_names = [(past(*pair), present(*pair)) for pair in pairs]

    def run(
        self, slots: Slots, first: int, ids: Array, starts: Array, wanted: Array
    ) -> tuple[Array, Array]:
        """Run `ids` (rows, tokens) in the slots from `first` on, which hold `starts` (rows,)
        positions each; the new positions are appended.

        Returns logits (wanted, vocabulary) of the places `wanted` in the flattened rows, and the
        last layer's queries (rows, heads, tokens, size).
        """
        rows, tokens = ids.shape
        ends = (starts + tokens - 1).astype(np.int32)
        binding = self._session.io_binding()
        binding.bind_cpu_input(IDS, ids)
        binding.bind_cpu_input(POSITIONS, starts[:, None] + np.arange(tokens))
        binding.bind_cpu_input(ENDS, ends)
        binding.bind_cpu_input(TOTAL, np.array(ends.max() + 1, np.int32))
        binding.bind_cpu_input(WANTED, wanted)
        binding.bind_output(LOGITS, "cpu")
        binding.bind_output(QUERIES, "cpu")
        for (taken, given), view in zip(self._cache_names, slots.views(first, rows), strict=True):
            place = ("cpu", 0, np.float32, view.shape, view.ctypes.data)
            binding.bind_input(taken, *place)
            binding.bind_output(given, *place)
        self._session.run_with_iobinding(binding)
        logits, queries = (value.numpy() for value in binding.get_outputs()[:2])
        shaped = queries.reshape(rows, tokens, self.shape.heads, self.shape.head_size)
        return logits, shaped.transpose(0, 2, 1, 3)
