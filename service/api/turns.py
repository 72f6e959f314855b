"""Reserves a share of the event loop for short work: probes, refusals, and the beginning of a
stream.

All ready tasks run in one turn of the loop, before new data are received. A thousand questions that
start or continue at once would make a turn of one second, and a request for `/healthz` waits for
two or three turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

SHARES: Final = 48  # shares of one turn
EVENT: Final = 1  # shares of an event of a question: 0.2 ms
REQUEST: Final = 8  # shares of the start of a question: 1.5 ms


class Turns:
    """Lets tasks continue in order of arrival, a limited number in each turn of the loop."""

    def __init__(self) -> None:
        self._left = SHARES
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._woken = 0  # those that a new turn lets continue, and that have not continued yet
        self._renewing = False

    async def take(self, shares: int) -> None:
        """Continue in this turn, or wait for the next one that has room."""
        self._renew_soon()
        if not self._waiting and not self._woken and self._left > 0:
            self._left -= shares
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, shares))
        try:
            await waiter
        finally:
            if not waiter.cancelled():
                self._woken -= 1

    def _renew_soon(self) -> None:
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        """Start a turn."""
        self._renewing = False
        self._left = SHARES
        while self._waiting and self._left > 0:
            waiter, shares = self._waiting.popleft()
            if not waiter.done():  # otherwise it was cancelled
                waiter.set_result(None)
                self._woken += 1
                self._left -= shares
        if self._waiting:
            self._renew_soon()
