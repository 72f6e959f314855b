"""One forward pass of the graph over a range of slots of the key-value cache."""

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
from service.engines.embedded.slots import Slots

Array = NDArray[Any]


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
