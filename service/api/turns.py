"""A share of the event loop for what is short: probes, refusals, and the beginning of a stream.

What is ready runs in one turn of the loop, before anything new is received. A thousand questions
that arrive together, or go on together, would make a turn of a second, and a request for `/healthz`
waits for two or three of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

SHARES: Final = 48  # that one turn has
EVENT: Final = 1  # of a question: 0.2 ms
REQUEST: Final = 8  # to begin one: 1.5 ms


class Turns:
    """Lets tasks continue in the order in which they come, so many in each turn of the loop."""

    def __init__(self) -> None:
        self._left = SHARES
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._renewing = False

    async def take(self, shares: int) -> None:
        """Go on in this turn, or wait for the next one that has room."""
        self._renew_soon()
        if not self._waiting and self._left > 0:
            self._left -= shares
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, shares))
        await waiter

    def _renew_soon(self) -> None:
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        """A turn begins."""
        self._renewing = False
        self._left = SHARES
        while self._waiting and self._left > 0:
            waiter, shares = self._waiting.popleft()
            if not waiter.done():  # else it was cancelled
                waiter.set_result(None)
                self._left -= shares
        if self._waiting:
            self._renew_soon()
