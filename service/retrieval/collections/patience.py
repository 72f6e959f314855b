"""Reading what other gateways may have written, while questions wait only briefly for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio

from service.core.errors import RevelatorError

REFRESH_S: Final = 0.15  # seconds that a question waits at most
HASTY_S: Final = 0.05  # the same, if it could not be read the last time

T = TypeVar("T")


class Patience:
    """How long to wait for a server that may not answer."""

    def __init__(self) -> None:
        self._seconds = REFRESH_S

    async def read(self, read: Callable[[], Awaitable[T]], known: T) -> T:
        """Return what is read, or `known` if it cannot be read soon."""
        seconds, self._seconds = self._seconds, HASTY_S
        try:
            with anyio.fail_after(seconds):
                found = await read()
        except (TimeoutError, RevelatorError):
            return known
        self._seconds = REFRESH_S
        return found
