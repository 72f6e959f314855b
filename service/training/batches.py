"""Rows of training examples for one pass through the model, that can be drawn again."""

from __future__ import annotations

import random
from collections.abc import Iterator

from service.training.clock import Clock
from service.training.copying import Example
from service.training.network import CONTEXT

ROW_TOKENS = 2048
POOL = 512


class Batches:
    """Groups of examples of similar length, at most ROW_TOKENS ids each with their padding.

    They are drawn POOL examples at a time. What `before` and `drawn_at` were at the last drawing,
    given back to `rng` and clock, draws the same again: then `skip` what was `taken`.
    """

    def __init__(self, examples: Iterator[Example], rng: random.Random, clock: Clock) -> None:
        self.examples, self.rng, self.clock = examples, rng, clock
        self.groups: list[list[Example]] = []
        self.taken, self.drawn_at = 0, clock.now
        self.before = rng.getstate()

    def __iter__(self) -> Iterator[list[Example]]:
        return self

    def __next__(self) -> list[Example]:
        if self.taken == len(self.groups):
            self._draw()
        self.taken += 1
        return self.groups[self.taken - 1]

    def skip(self, taken: int) -> None:
        """Draw again, and go on behind the first `taken` groups."""
        self._draw()
        self.taken = taken

    def _draw(self) -> None:
        self.before, self.drawn_at, self.taken = self.rng.getstate(), self.clock.now, 0
        pool = sorted((next(self.examples) for _ in range(POOL)), key=lambda e: len(e.ids))
        groups: list[list[Example]] = [[]]
        for example in pool:
            if len(example.ids) > CONTEXT:
                continue
            if groups[-1] and (len(groups[-1]) + 1) * len(example.ids) > ROW_TOKENS:
                groups.append([])
            groups[-1].append(example)
        self.rng.shuffle(groups)
        self.groups = groups
