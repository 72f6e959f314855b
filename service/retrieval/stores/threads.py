"""Calls back to the event loop from worker threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.from_thread

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


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
