"""A store's searches, off the event loop and under one name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from service.errors import RetrievalFailure, RevelatorError

AT_ONCE = 8  # searches of one store that run at a time

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Threads:
    """Runs a store's blocking calls; whatever it raises becomes a RetrievalFailure."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._limiter = anyio.CapacityLimiter(AT_ONCE)

    async def run(self, call: Callable[[Argument], Result], argument: Argument) -> Result:
        """A cancelled caller goes at once; its thread ends by itself and is not waited for."""
        try:
            return await anyio.to_thread.run_sync(
                call, argument, abandon_on_cancel=True, limiter=self._limiter
            )
        except RevelatorError:
            raise
        except Exception as error:
            raise RetrievalFailure(f"{self._backend} failed: {error}") from error
