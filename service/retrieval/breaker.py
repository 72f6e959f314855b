"""A circuit breaker: a backend that fails again and again is left alone for a while.

    closed ── `failures` in a row ──▶ open ── after `open_s` ──▶ half-open ── a success ──▶ closed
                                      ▲                             │
                                      └───────── a failure ─────────┘

Half-open, one call goes out as a probe and the others are refused. There is no clock and no I/O
here: times (seconds, monotonic) are given. The pattern: Nygard, Release It!, 2nd ed., chapter 5.
"""

from __future__ import annotations

from typing import Literal

BreakerState = Literal["closed", "half-open", "open"]


class Breaker:
    """Each admitted call holds a ticket and ends with `succeeded`, `failed` or `left`.

    A call that began before the newest change of state tells nothing of the backend as it is now:
    its end is ignored.
    """

    def __init__(self, failures: int, open_s: float) -> None:
        self._most = failures
        self._open_s = open_s
        self._failures = 0
        self._until = 0.0
        self._ticket = 0
        self.state: BreakerState = "closed"

    def refuses(self, now: float) -> bool:
        """Whether `admit` would admit no call."""
        return self.state == "half-open" or (self.state == "open" and now < self._until)

    def admit(self, now: float) -> int | None:
        """A ticket, or None while the backend is left alone."""
        if self.refuses(now):
            return None
        if self.state == "open":
            self._enter("half-open")
        return self._ticket

    def succeeded(self, ticket: int) -> None:
        if ticket == self._ticket:
            self._failures = 0
            if self.state == "half-open":
                self._enter("closed")

    def failed(self, ticket: int, now: float) -> None:
        if ticket != self._ticket:
            return
        self._failures += 1
        if self.state == "half-open" or self._failures >= self._most:
            self._until = now + self._open_s
            self._enter("open")

    def left(self, ticket: int) -> None:
        """The caller went away: nothing is known, and the next call is the probe."""
        if ticket == self._ticket and self.state == "half-open":
            self._enter("open")

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self._failures = 0
        self._ticket += 1
