"""Which inputs share a forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

PACK: Final = 1024  # pieces of a pass, with padding: what a layer works on stays in the cache
PADDING: Final = 0.05  # share of a pass: on a processor padding costs as much as text


def packs(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of inputs, shortest first, in groups of at most PACK pieces that are nearly as long
    as each other. A longer input goes alone."""
    pack: list[int] = []
    pieces = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded = lengths[index] * (len(pack) + 1)
        if pack and (padded > PACK or pieces + lengths[index] < (1 - PADDING) * padded):
            yield pack
            pack, pieces = [], 0
        pack.append(index)
        pieces += lengths[index]
    if pack:
        yield pack
