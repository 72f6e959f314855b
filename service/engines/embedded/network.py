"""One forward pass of the graph over a stretch of slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from service.engines.compiled.card import ModelShape
from service.engines.compiled.names import (
    ENDS,
    IDS,
    LOGITS,
    POSITIONS,
    QUERIES,
    TOTAL,
    WANTED,
    past,
    present,
)
from service.engines.embedded.slots import Slots

Array = NDArray[Any]


class Network:
    """An ONNX Runtime session. Raises what that raises for a file that is no such graph."""

    def __init__(self, model: Path, shape: ModelShape, *, threads: int) -> None:
        self.shape = shape
        self._session = onnxruntime.InferenceSession(
            str(model), _options(threads), providers=["CPUExecutionProvider"]
        )
        pairs = [(layer, kind) for layer in range(shape.layers) for kind in ("key", "value")]
        self._cache_names = [(past(*pair), present(*pair)) for pair in pairs]

    def run(
        self, slots: Slots, first: int, ids: Array, starts: Array, wanted: Array
    ) -> tuple[Array, Array]:
        """Run `ids` (rows, tokens) in the slots from `first` on, which hold `starts` (rows,)
        positions each, and are written on.

        Returns logits (wanted, vocabulary) of the flat places `wanted`, and the last layer's
        queries (rows, heads, tokens, size).
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


def _options(threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads wait for the next operator by spinning, which makes tokens faster, but only during a
    # pass: between passes the cores are free.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Sums of products overflow on x86 processors without VNNI unless this is on; others ignore it.
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    return options
