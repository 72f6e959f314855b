"""Tasks that outlive a request, each on its own: the failure of one ends no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import structlog

from service.core.native import is_failure

PAUSE_S: Final = 0.5  # before a task is restarted
LASTING_S: Final = 60.0  # a task that ran so long had recovered from the failure before
MOST_RESTARTS: Final = 10  # in a row; more do not help

_log = structlog.get_logger(__name__)


class Supervisor:
    """Runs tasks until `aclose`, which cancels them. `problem` says why the process should be
    restarted, if it should."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self._tasks: set[asyncio.Task[bool]] = set()

    def spawn(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        """Run work once. A failure, a panic of native code too, is logged."""
        task = asyncio.create_task(self._once(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def keep(self, name: str, call: Callable[[], Awaitable[object]]) -> None:
        """Run `call`, and again whenever it fails. Where that does not help, `problem` is set."""
        self.spawn(name, self._kept(name, call))

    async def aclose(self) -> None:
        self.problem = "its tasks were ended"
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _once(self, name: str, work: Awaitable[object]) -> bool:
        """Whether the work succeeded."""
        try:
            await work
        except BaseException as error:
            if not is_failure(error):
                raise
            _log.exception("task failed", task=name)
            return False
        return True

    async def _kept(self, name: str, call: Callable[[], Awaitable[object]]) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            if await self._once(name, call()):
                return
            failures = failures + 1 if time.monotonic() - began < LASTING_S else 1
            if failures > MOST_RESTARTS:
                self.problem = f"the task {name!r} fails whenever it is restarted"
            await asyncio.sleep(PAUSE_S * failures)
