"""Runs blocking stores in worker threads, and calls back to the event loop from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.from_thread
import anyio.to_thread

from service.core.errors import RetrievalFailure, RevelatorError

AT_ONCE = 8  # concurrent searches of one store

Argument = TypeVar("Argument")
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Threads:
    """Runs a store's blocking calls. Any exception becomes a RetrievalFailure."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._limiter = anyio.CapacityLimiter(AT_ONCE)

    async def run(self, call: Callable[[Argument], Result], argument: Argument) -> Result:
        """Run a call in a worker thread. A cancelled caller returns at once, and its thread ends by
        itself."""
        with self._failures():
            return await anyio.to_thread.run_sync(
                call, argument, abandon_on_cancel=True, limiter=self._limiter
            )

    def run_here(self, call: Callable[[Argument], Result], argument: Argument) -> Result:
        """Run a call on the event loop itself, for calls that are faster than reaching a thread."""
        with self._failures():
            return call(argument)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except RevelatorError:
            raise
        except Exception as error:
            raise RetrievalFailure(f"{self._backend} failed: {error}") from error


def on_loop(call: Callable[[*Arguments], Awaitable[Result]], *arguments: *Arguments) -> Result:
    """Await `call(*arguments)` on the event loop that started this worker thread.

    A caller that is cancelled meanwhile waits until the call ends, as for any other blocking call,
    so `call` must be bounded in time.
    """

    async def shielded() -> Result:
        with anyio.CancelScope(shield=True):
            result = await call(*arguments)
        return result  # noqa: RET504 - the scope might swallow, mypy says

    return anyio.from_thread.run(shielded)
