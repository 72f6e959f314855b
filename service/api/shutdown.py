"""Shutdown: no new questions, time for those in progress, then cancellation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from service.core.errors import Draining

DETAIL: Final = "The server is shutting down. Ask again in a moment."


class Drain:
    """Tracks work in progress during a shutdown. Work registers a callback that cancels it.

    `begin` refuses new work, `finished` waits for the work in progress, `expire` cancels the rest.
    """

    def __init__(self) -> None:
        self.begun = False
        self._work: dict[object, Callable[[], None]] = {}
        self._on_begin: dict[object, Callable[[], None]] = {}
        self._idle = anyio.Event()

    def check(self) -> None:
        """Raise Draining if the shutdown has begun."""
        if self.begun:
            raise Draining(DETAIL)

    @contextmanager
    def work(self, cut: Callable[[], None]) -> Iterator[None]:
        """Register work that the shutdown waits for. `cut` is called when the time is up.

        Raises Draining if the shutdown has begun.
        """
        self.check()
        key = object()
        self._work[key] = cut
        try:
            yield
        finally:
            del self._work[key]
            self._tell()

    def on_begin(self, callback: Callable[[], None]) -> None:
        """Register a callback for the beginning of the shutdown."""
        self._on_begin[object()] = callback

    @property
    def running(self) -> int:
        """Number of pieces of work in progress."""
        return len(self._work)

    def begin(self) -> None:
        if self.begun:
            return
        self.begun = True
        for callback in self._on_begin.values():
            callback()
        self._tell()

    async def finished(self, seconds: float) -> None:
        """Wait at most this long until no work is left, then cancel the rest."""
        with anyio.move_on_after(seconds):
            await self._idle.wait()
        self.expire()

    def expire(self) -> None:
        """Cancel all remaining work."""
        for cut in list(self._work.values()):
            cut()
        self._idle.set()

    def _tell(self) -> None:
        if self.begun and not self._work:
            self._idle.set()
