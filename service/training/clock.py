"""How far a training is: by the wall clock, or by updates where it must be repeatable."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

WARM_UP_S = 60.0
WARM_UP_UPDATES = 20


@dataclass
class Clock:
    """Training time in seconds, continued over resumed runs; the schedule hangs on it."""

    limit: float
    before: float = 0.0
    scale: float = 1.0
    warm_up: float = WARM_UP_S
    started: float = field(default_factory=time.monotonic)

    @property
    def now(self) -> float:
        return self.before + time.monotonic() - self.started

    def tick(self) -> None:
        """An update is done."""

    def set(self, now: float) -> None:
        """Go on from `now`."""
        self.before, self.started = now, time.monotonic()

    def share(self) -> float:
        """How much of the training is over, from 0 to 1."""
        return min(1.0, self.now / self.limit)

    def rate(self) -> float:
        """Factor on the learning rates: quickly up, flat, then a line down, all by `scale`."""
        warm = min(1.0, (self.now + 1.0) / self.warm_up)
        return self.scale * warm * max(0.01, min(1.0, 1.6 * (1 - self.share())))


@dataclass
class UpdateClock(Clock):
    """The same in updates: two runs with the same seed see the same times."""

    warm_up: float = WARM_UP_UPDATES

    @property
    def now(self) -> float:
        return self.before

    def tick(self) -> None:
        self.before += 1
