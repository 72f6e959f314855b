"""A server that has stopped answering is asked one small question at a time.

What is sent to a process that hangs is not lost: its kernel takes connections and keeps what comes
over them, and the process works all of it off when it goes on, before anything that is sent later.
So calls to a silent server wait and are not sent, while one request after the other, on a
connection of its own, finds out when it answers again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

ASK_S: Final = 5.0  # after which the connection may be what is lost, and another one is tried
LEAST_S: Final = 0.04  # a call that was left sooner says nothing


class Silence:
    """Whether a server is silent: a call ended without an answer, and since it was sent no other
    call had one.

    `ask` makes one request and returns when there is any answer to it. What it raises says that
    the server is out, but not that it is silent. Close it, because a request may be under way.
    """

    def __init__(self, ask: Callable[[], Awaitable[object]]) -> None:
        self._ask = ask
        self._heard = -math.inf  # when an answer last came, by `time.monotonic`
        self._asking: asyncio.Task[None] | None = None
        self.on = False

    def heard(self) -> None:
        """An answer came, whatever it says."""
        self._heard, self.on = time.monotonic(), False

    def lost(self, sent: float) -> None:
        """A call that was sent at `sent` (of `time.monotonic`) ended without an answer."""
        if self._heard < sent and time.monotonic() - sent >= LEAST_S:
            self.on = True

    async def over(self) -> None:
        """Return once the server is not silent."""
        while self.on:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask_once())
            await asyncio.wait({self._asking})

    async def aclose(self) -> None:
        """Cancel the request that may be under way."""
        if (asking := self._asking) is not None:
            asking.cancel()
            await asyncio.wait({asking})

    async def _ask_once(self) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                await self._ask()
        except TimeoutError:
            return
        except Exception:  # whoever calls meets it too, and is told
            self.on = False
        else:
            self.heard()
        finally:
            self._asking = None
