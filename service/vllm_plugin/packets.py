"""A worker's packets about a call.

Tensor parallelism splits the heads: each rank sends means over its own heads, and the API server
weights them by the ranks' numbers of heads. Arrays are sent as bytes (float32), because vLLM sends
only plain values between its processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.vllm_plugin.tracking import Tracked

Floats = NDArray[np.float32]
Packet = dict[str, Any]

NOTHING: Packet = {"heads": 1, "numbers": b"", "means": [], "rows": []}
NOT_FINITE = "the model's attention or logits are not finite (NaN): check its weights and dtype"


class Packer:
    """Makes the packets of one tracked call: the data since the last packet, None if there are
    none.
    """

    def __init__(self, tracked: Tracked) -> None:
        self._tracked = tracked
        self._numbers = 0
        self._done = False

    def next(self) -> Packet | None:
        tracked = self._tracked
        if self._done:
            return None
        new, means = tracked.numbers[self._numbers :], tracked.means
        self._numbers, tracked.means = len(tracked.numbers), []
        arrays = [mean.float().cpu().numpy() for mean in means]
        columns = [[step.host[0][column], step.host[1][column]] for step, column in new]
        numbers = np.array(columns, np.float32)
        if any(np.isnan(array).any() for array in (numbers, *arrays)):
            tracked.error = tracked.error or NOT_FINITE
        if tracked.error:
            self._done = True
            return {"error": tracked.error}
        if not new and not arrays:
            return None
        return {
            "heads": tracked.heads,
            "numbers": numbers.tobytes(),
            "means": [array.tobytes() for array in arrays],
            "rows": rows_of(tracked, tracked.wish.rows),
        }


def rows_of(tracked: Tracked, positions: Sequence[int]) -> list[tuple[int, bytes]]:
    """Return head-averaged rows, as far as they are kept."""
    kept = [(p, tracked.rows[p]) for p in positions if p in tracked.rows]
    return [(p, row.float().cpu().numpy().tobytes()) for p, row in kept]


def weighted(of_ranks: Sequence[bytes], heads: Sequence[int]) -> Floats:
    """Return the mean over all heads from every rank's mean over its own, flat."""
    arrays = [np.frombuffer(data, np.float32) for data in of_ranks]
    if len(arrays) == 1:
        return arrays[0]
    return np.average(np.stack(arrays), axis=0, weights=heads).astype(np.float32)


def merge_rows(
    rows: Sequence[Sequence[tuple[int, bytes]]], heads: Sequence[int]
) -> dict[int, Floats]:
    """Return rows by position, merged from those of every rank."""
    return {
        of_ranks[0][0]: weighted([data for _, data in of_ranks], heads)
        for of_ranks in zip(*rows, strict=True)
    }
