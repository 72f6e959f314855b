"""A circuit breaker: a backend that fails repeatedly is not called for a while.

    closed ── `failures` or `lost_s` ──▶ open ── after `open_s` ──▶ half-open ── success ──▶ closed
                                          ▲                             │
                                          └────────── a failure ────────┘

Half-open, one call goes out as a trial and the others are refused. There is no clock and
no I/O here: callers pass the time (seconds, monotonic). The pattern: Nygard, Release It!, 2nd ed.,
chapter 5.
"""

from __future__ import annotations

from typing import Literal

BreakerState = Literal["closed", "half-open", "open"]


class Breaker:
    """Decides whether a backend is called. Each admitted call holds a ticket and ends with
    `succeeded`, `failed` or `left`.

    The breaker opens after `failures` in a row, or once calls have waited `lost_s` since the last
    success. Calls that wait at the same time count that time once. The end of a call that began
    before the latest change of state is ignored, because it says nothing about the current backend.
    """

    def __init__(self, failures: int, lost_s: float, open_s: float) -> None:
        self._most = failures
        self._most_lost_s = lost_s
        self._open_s = open_s
        self._failures = 0
        self._lost_s = 0.0
        self._counted = 0.0  # the end of the time counted in `_lost_s`
        self._until = 0.0
        self._ticket = 0
        self.state: BreakerState = "closed"

    def refuses(self, now: float) -> bool:
        """Whether `admit` would refuse a call."""
        return self.state == "half-open" or (self.state == "open" and now < self._until)

    def admit(self, now: float) -> int | None:
        """Return a ticket, or None while the breaker is open."""
        if self.refuses(now):
            return None
        if self.state == "open":
            self._enter("half-open")
        return self._ticket

    def succeeded(self, ticket: int) -> None:
        if ticket == self._ticket:
            self._failures, self._lost_s = 0, 0.0
            if self.state == "half-open":
                self._enter("closed")

    def failed(self, ticket: int, began: float, now: float) -> None:
        """Record the failure of a call that was sent at `began`."""
        if ticket != self._ticket:
            return
        self._failures += 1
        self._lose(began, now)
        if self.state == "half-open" or self._failures >= self._most:
            self._open(now)

    def left(self, ticket: int, began: float, now: float) -> None:
        """Record that the caller left before a response arrived: not a failure, but its time
        counts. In the half-open state the next call is the trial."""
        if ticket != self._ticket:
            return
        if self.state == "half-open":
            self._enter("open")
        else:
            self._lose(began, now)

    def _lose(self, began: float, now: float) -> None:
        self._lost_s += max(0.0, now - max(began, self._counted))
        self._counted = now
        if self.state == "closed" and self._lost_s >= self._most_lost_s:
            self._open(now)

    def _open(self, now: float) -> None:
        self._until = now + self._open_s
        self._enter("open")

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self._failures, self._lost_s = 0, 0.0
        self._ticket += 1
