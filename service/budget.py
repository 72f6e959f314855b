"""One value object per question: what it may spend, what it has spent, how long it has left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

RESERVE_SHARE = 0.2  # design: no step starts when less than this share of the time is left,
RESERVE_CALLS = 1.5  # or less than this many times the question's slowest reader call.


@dataclass(frozen=True, slots=True)
class Limits:
    """Most seconds, steps, retrievals, engine calls and tokens (prompt + completion)."""

    timeout_s: float = 60.0
    max_steps: int = 5
    max_retrievals: int = 64
    max_llm_calls: int = 256
    max_tokens: int = 400_000


@dataclass(slots=True)
class Budget:
    """Counts against `limits` from the moment it is made. `clock` is in seconds, monotonic."""

    limits: Limits
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)
    retrievals: int = 0
    llm_calls: int = 0
    tokens: int = 0
    slowest_reader_s: float = 0.0

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self.started

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.limits.timeout_s - self.elapsed_s)

    @property
    def reserve_s(self) -> float:
        """Seconds kept back for writing the final answer from the evidence."""
        share = RESERVE_SHARE * self.limits.timeout_s
        return max(share, RESERVE_CALLS * self.slowest_reader_s)

    @property
    def step_remaining_s(self) -> float:
        """Seconds a step may still take without eating into the reserve."""
        return max(0.0, self.remaining_s - self.reserve_s)

    def exhausted(self) -> str | None:
        """Why no further step may start: ``"deadline"``, ``"budget"``, or None if one may."""
        if self.remaining_s < self.reserve_s:
            return "deadline"
        spent = (
            self.retrievals >= self.limits.max_retrievals
            or self.llm_calls >= self.limits.max_llm_calls
            or self.tokens >= self.limits.max_tokens
        )
        return "budget" if spent else None

    def spend_call(self, tokens: int, seconds: float, *, reader: bool) -> None:
        """Count one engine call. Retries count too."""
        self.llm_calls += 1
        self.tokens += tokens
        if reader:
            self.slowest_reader_s = max(self.slowest_reader_s, seconds)


class Stopwatch:
    """Wall time during which at least one thing ran; re-entrant, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running = 0
        self._since = 0.0

    def __enter__(self) -> None:
        if self._running == 0:
            self._since = time.monotonic()
        self._running += 1

    def __exit__(self, *_: object) -> None:
        self._running -= 1
        if self._running == 0:
            self.seconds += time.monotonic() - self._since
