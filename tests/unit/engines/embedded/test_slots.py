"""The key-value cache uses memory for what it keeps, and loses nothing of that."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from service.engines.batch.engine import ROOM, Slots
from service.engines.embedded import ModelShape

SHAPE = ModelShape(
    layers=2, heads=3, kv_heads=3, head_size=64, width=192, vocabulary=10, context=8192,
    tied=True, epsilon=1e-5, rope_theta=10_000.0,
)  # fmt: skip
STATM = Path("/proc/self/statm")
on_linux = pytest.mark.skipif(
    not STATM.exists(), reason="needs Linux, which tells the memory of a process"
)


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(STATM.read_text().split()[1]) * 4096


def write(slots: Slots, slot: int, start: int, end: int, value: float = 1.0) -> None:
    for buffer in slots.views(slot, 1):
        buffer[0, :, start:end] = value


@on_linux
def test_only_positions_that_were_written_use_memory() -> None:
    slots = Slots(SHAPE)
    slots.reserve(8192, [0] * 64)
    before = resident()

    for slot in range(64):
        write(slots, slot, 0, 100)

    assert resident() - before < 3 * 64 * 100 * slots.position_bytes  # numpy's own pages: 1.6 GB


@on_linux
def test_memory_of_rows_that_have_left_is_freed() -> None:
    slots = Slots(SHAPE)
    slots.reserve(8192, [0] * 8)
    before = resident()
    for slot in range(8):
        write(slots, slot, 0, 8192)
    used = resident() - before
    slots.reserve(8192, [8192] * 8)

    slots.reserve(100, [90] * 8)

    assert used > 8 * 8000 * slots.position_bytes
    assert resident() - before < used / 20


def test_what_is_kept_survives_every_move() -> None:
    chance = random.Random(5)
    slots = Slots(SHAPE)
    values: list[float] = []
    lengths: list[int] = []
    for turn in range(200):
        if lengths and chance.random() < 0.4:
            gone = chance.randrange(len(lengths))
            slots.move(len(lengths) - 1, gone, lengths[-1])
            values[gone], lengths[gone] = values[-1], lengths[-1]
            values.pop(), lengths.pop()
        new = chance.choice([1, 40, 300, 3000])
        slots.reserve(new, [*lengths, 0])
        write(slots, len(lengths), 0, new, turn)
        values.append(turn)
        lengths.append(new)

        for slot, (value, length) in enumerate(zip(values, lengths, strict=True)):
            for buffer in slots.views(slot, 1):
                assert (buffer[0, :, :length] == value).all()
    assert len(lengths) > 20


def test_room_for_nothing_is_the_least_room() -> None:
    slots = Slots(SHAPE)

    slots.reserve(0, [0])

    assert slots.views(0, 1)[0].shape == (1, SHAPE.kv_heads, ROOM, SHAPE.head_size)
    assert np.array_equal(slots.keys(0, 5), np.zeros((3, 5, 64), np.float32))
    slots.clear()
    assert slots.views(0, 1) == []
