"""Sequences in batches of a number of tokens, those of like length together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

# Sequences that are sorted by length at a time: their order stays the mixture's. 128 pad a third
# of the places of a batch of 4,800 tokens.
WINDOW: Final = 1024


def batches_of(lengths: Sequence[int], tokens: int, seed: str) -> list[list[int]]:
    """Places of sequences by batch: at most `tokens` with padding, or one that is longer.

    They are shuffled by `seed`; each is in one batch.
    """
    rng = random.Random(seed)
    order = rng.sample(range(len(lengths)), len(lengths))
    batches: list[list[int]] = []
    for start in range(0, len(order), WINDOW):
        window = sorted(order[start : start + WINDOW], key=lambda place: -lengths[place])
        found: list[list[int]] = []
        for place in window:
            if found and (len(found[-1]) + 1) * lengths[found[-1][0]] <= tokens:
                found[-1].append(place)
            else:
                found.append([place])
        rng.shuffle(found)
        batches += found
    return batches
