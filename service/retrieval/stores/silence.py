"""Detects a server that stopped responding, and probes it with one small request at a time.

Requests to a hung process are not lost: its kernel accepts connections and buffers their data, and
once the process continues it handles all of that before later requests. Therefore calls to a silent
server are held back, while one probe at a time, each over its own connection, finds out when the
server responds again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

ASK_S: Final = 5.0  # after this the connection may be lost, so another one is tried
LEAST_S: Final = 0.04  # a call that was cancelled sooner proves nothing


class Silence:
    """Tracks whether a server is silent: a call ended without a response, and no other call had a
    response since it was sent.

    `ask` makes one request and returns when there is any response. An exception of `ask` means that
    the server is unavailable, but not that it is silent. Call `aclose`, because a request may be in
    flight.
    """

    def __init__(self, ask: Callable[[], Awaitable[object]]) -> None:
        self._ask = ask
        self._heard = -math.inf  # time of the last response, by `time.monotonic`
        self._asking: asyncio.Task[None] | None = None
        self.on = False

    def heard(self) -> None:
        """Record a response, whatever it says."""
        self._heard, self.on = time.monotonic(), False

    def lost(self, sent: float) -> None:
        """Record that a call sent at `sent` (of `time.monotonic`) ended without a response."""
        if self._heard < sent and time.monotonic() - sent >= LEAST_S:
            self.on = True

    async def over(self) -> None:
        """Return once the server is not silent."""
        while self.on:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask_once())
            await asyncio.wait({self._asking})

    async def aclose(self) -> None:
        """Cancel the request in flight, if there is one."""
        if (asking := self._asking) is not None:
            asking.cancel()
            await asyncio.wait({asking})

    async def _ask_once(self) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                await self._ask()
        except TimeoutError:
            return
        except Exception:  # the next caller gets the same error, and reports it
            self.on = False
        else:
            self.heard()
        finally:
            self._asking = None
