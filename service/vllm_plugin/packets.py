"""A worker's packets about a call, and the merging of packets of several ranks.

Tensor parallelism splits the heads: each rank sends means over its own heads, and the API server
weights them by the ranks' numbers of heads. Arrays are sent as bytes (float32, int32), because vLLM
sends only plain values between its processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engines.signals import AttentionUpdate
from service.vllm_plugin.tracking import Tracked

Floats = NDArray[np.float32]
Packet = dict[str, Any]


NOTHING: Packet = {"numbers": b"", "heads": 1, "counts": [], "keys": b"", "values": b""}
NOT_FINITE = "the model's attention or logits are not finite (NaN): check its weights and dtype"


class Packer:
    """Makes the packets of one tracked call: the data since the last packet, None if there are
    none.
    """

    def __init__(self, tracked: Tracked) -> None:
        self._tracked = tracked
        self._numbers = 0
        self._means = np.zeros((2, 0), np.float32)
        self._done = False

    def next(self) -> Packet | None:
        tracked = self._tracked
        if self._done:
            return None
        if not tracked.error and tracked.wish.score:
            return self._checked(self._score()) if tracked.complete else None
        if not tracked.error:
            packet = self._checked({"numbers": self._new_numbers(), **self._updates()})
            return packet if any(packet.get(n) for n in ("error", "numbers", "counts")) else None
        self._done = True
        return {"error": tracked.error}

    def _checked(self, packet: Packet) -> Packet:
        sent = (packet.get(name, b"") for name in ("numbers", "values", "maxima"))
        if not any(np.isnan(np.frombuffer(data, np.float32)).any() for data in sent):
            return packet
        self._done, self._tracked.error = True, NOT_FINITE
        return {"error": NOT_FINITE}

    def _new_numbers(self) -> bytes:
        new = self._tracked.numbers[self._numbers :]
        self._numbers += len(new)
        values = [[step.host[0][column], step.host[1][column]] for step, column in new]
        return np.array(values, np.float32).tobytes()

    def _updates(self) -> Packet:
        """Return the means that each new row changed: `counts` per row, then keys and (2, …)
        values.
        """
        changed: list[NDArray[np.int32]] = []
        values: list[Floats] = []
        for means in self._tracked.means:
            new = means.float().cpu().numpy()
            before = np.full_like(new, -1.0)
            before[:, : self._means.shape[1]] = self._means
            (keys,) = np.nonzero((new != before).any(axis=0))
            changed.append(keys.astype(np.int32))
            values.append(new[:, keys])
            self._means = new
        self._tracked.means.clear()
        return {
            "heads": self._tracked.heads,
            "counts": [len(keys) for keys in changed],
            "keys": np.concatenate([*changed, np.zeros(0, np.int32)]).astype(np.int32).tobytes(),
            "values": np.concatenate([*values, np.zeros((2, 0), np.float32)], axis=1).tobytes(),
        }

    def _score(self) -> Packet:
        self._done = True
        maxima = self._tracked.maxima
        means = maxima.means().float().cpu().numpy() if maxima else self._means
        return {
            "heads": self._tracked.heads,
            "maxima": means.tobytes(),
            "rows": rows_of(self._tracked, self._tracked.wish.rows),
        }


def rows_of(tracked: Tracked, positions: Sequence[int]) -> list[tuple[int, bytes]]:
    """Return head-averaged rows, as far as they are kept."""
    kept = [(p, tracked.rows[p]) for p in positions if p in tracked.rows]
    return [(p, row.float().cpu().numpy().tobytes()) for p, row in kept]


class RankMerger:
    """Follows one draft's maxima on every rank; `updates` gives those of the whole model."""

    def __init__(self, ranks: int) -> None:
        self._means = [np.zeros((2, 0), np.float32) for _ in range(ranks)]

    def updates(self, packets: Sequence[Packet]) -> list[list[AttentionUpdate]]:
        """Return the changes of the next rows, one list per row, from one packet of every rank."""
        heads = [packet["heads"] for packet in packets]
        by_rank = [_read_updates(packet) for packet in packets]
        merged: list[list[AttentionUpdate]] = []
        for row in zip(*by_rank, strict=True):
            for rank, (keys, values) in enumerate(row):
                self._means[rank] = _with(self._means[rank], keys, values)
            keys = np.unique(np.concatenate([keys for keys, _ in row]))
            whole = weighted([means[:, keys] for means in self._means], heads)
            changed = zip(keys.tolist(), *whole.tolist(), strict=True)
            merged.append([AttentionUpdate(*each) for each in changed])
        return merged


def _read_updates(packet: Packet) -> list[tuple[NDArray[np.int32], Floats]]:
    keys = np.frombuffer(packet["keys"], np.int32)
    values = np.frombuffer(packet["values"], np.float32).reshape(2, -1)
    ends = np.cumsum(packet["counts"])[:-1]
    if not packet["counts"]:
        return []
    return list(zip(np.split(keys, ends), np.split(values, ends, axis=1), strict=True))


def _with(means: Floats, keys: NDArray[np.int32], values: Floats) -> Floats:
    size = max(means.shape[1], int(keys.max(initial=-1)) + 1)
    grown = np.zeros((2, size), np.float32)
    grown[:, : means.shape[1]] = means
    grown[:, keys] = values
    return grown


def weighted(means: Sequence[Floats], heads: Sequence[int]) -> Floats:
    """Return the mean over all heads from every rank's mean over its own."""
    if len(means) == 1:
        return means[0]
    return np.average(np.stack(means), axis=0, weights=heads).astype(np.float32)


def merge_rows(
    rows: Sequence[Sequence[tuple[int, bytes]]], heads: Sequence[int]
) -> dict[int, Floats]:
    """Return rows by position, merged from those of every rank."""
    merged: dict[int, Floats] = {}
    for of_ranks in zip(*rows, strict=True):
        arrays = [np.frombuffer(data, np.float32) for _, data in of_ranks]
        merged[of_ranks[0][0]] = weighted(arrays, heads)
    return merged
