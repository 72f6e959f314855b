"""Work that must not run twice at once, one call after the other in a worker thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


class Gone(Exception):
    """Raised by work that nobody waits for any longer; nobody sees it."""


class Turns:
    """A thread cannot be stopped: work whose caller left is waited for by the next one, and ends
    early where it looks at `gone`."""

    def __init__(self) -> None:
        self._turn = anyio.Lock()
        self._running = threading.Lock()

    async def run(self, work: Callable[[threading.Event], T]) -> T:
        gone = threading.Event()
        async with self._turn:
            try:
                return await anyio.to_thread.run_sync(self._run, work, gone, abandon_on_cancel=True)
            finally:
                gone.set()

    def _run(self, work: Callable[[threading.Event], T], gone: threading.Event) -> T:
        with self._running:
            if gone.is_set():
                raise Gone
            return work(gone)
