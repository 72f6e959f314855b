"""How much may be kept on a worker at once, reserved before a call begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

MAX_CALLS = 512
MAX_BYTES = 1 << 30


class Full(Exception):
    """Too much is tracked already; the text says what."""


def bytes_of(
    prompt: int, most_tokens: int, heads: int, *, score: bool, attention: bool, rows: int
) -> int:
    """The most that a worker keeps for a call, in bytes.

    Two maxima a head and watched key, a row of the whole context per token of a draft (or per row
    asked of a score), what waits to be fetched, and two numbers a token; 4 bytes each.
    """
    watched = prompt if score else most_tokens
    numbers = 2 * (prompt if score else most_tokens)
    if not attention:
        return 4 * numbers
    kept = rows * prompt if score else most_tokens * (prompt + most_tokens)
    waiting = 0 if score else most_tokens * (most_tokens + 1)
    return 4 * (2 * heads * watched + kept + waiting + numbers)


class Ledger:
    def __init__(self, max_calls: int = MAX_CALLS, max_bytes: int = MAX_BYTES) -> None:
        self.calls = 0
        self.bytes = 0
        self.max_calls = max_calls
        self.max_bytes = max_bytes

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Hold a place and `size` bytes. Raises Full."""
        if self.calls >= self.max_calls:
            raise Full(f"the maximum of {self.calls} calls with signals are already running")
        if self.bytes + size > self.max_bytes:
            raise Full(
                f"the call may need {size:,} bytes on the worker, where {self.bytes:,} of "
                f"{self.max_bytes:,} bytes are in use"
            )
        self.calls += 1
        self.bytes += size
        try:
            yield
        finally:
            self.calls -= 1
            self.bytes -= size
