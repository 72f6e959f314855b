"""The end of a server's life: no new questions, time for the running ones, then an orderly cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from service.errors import Draining

DETAIL: Final = "the server is shutting down; ask again in a moment"


class Drain:
    """Who works under it registers a callback that cuts the work off.

    `begin` refuses new work, `finished` waits for the old, `expire` cuts off what is left.
    """

    def __init__(self) -> None:
        self.begun = False
        self._work: dict[object, Callable[[], None]] = {}
        self._on_begin: dict[object, Callable[[], None]] = {}
        self._idle = anyio.Event()
        self._expired = False

    def check(self) -> None:
        """Raises Draining once it has begun."""
        if self.begun:
            raise Draining(DETAIL)

    @contextmanager
    def work(self, cut: Callable[[], None]) -> Iterator[None]:
        """Work that a drain waits for. `cut` is called when the time is up.

        Raises Draining where it has begun already.
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
        """Call back at once when draining begins."""
        self._on_begin[object()] = callback

    @property
    def running(self) -> int:
        """Pieces of work under way."""
        return len(self._work)

    def begin(self) -> None:
        if self.begun:
            return
        self.begun = True
        for callback in self._on_begin.values():
            callback()
        self._tell()

    async def finished(self, seconds: float) -> None:
        """Wait until no work is left, at most so long; then cut off the rest."""
        with anyio.move_on_after(seconds):
            await self._idle.wait()
        self.expire()

    def expire(self) -> None:
        """Cut off all work that is left."""
        self._expired = True
        for cut in list(self._work.values()):
            cut()
        self._idle.set()

    def _tell(self) -> None:
        if self.begun and not self._work:
            self._idle.set()
