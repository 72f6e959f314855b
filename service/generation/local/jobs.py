"""What crosses the border between the event loop and the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from service.generation.base import Delta, GenerationRequest

Item = Delta | BaseException


class Job:
    """One call. The thread delivers items into the caller's loop; who leaves sets `cancelled`."""

    __slots__ = ("cancelled", "items", "loop", "request")

    def __init__(self, request: GenerationRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.loop = loop
        self.items: asyncio.Queue[Item] = asyncio.Queue()
        self.cancelled = False


def deliver(items: Iterable[tuple[Job, Item]]) -> None:
    """Hand items over to their loops, one wake-up per loop; those of closed loops are dropped."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job, Item]]] = {}
    for job, item in items:
        by_loop.setdefault(job.loop, []).append((job, item))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put, batch)
        except RuntimeError:  # the loop is closed: nobody waits there any more
            for job, _ in batch:
                job.cancelled = True


def _put(batch: list[tuple[Job, Item]]) -> None:
    for job, item in batch:
        job.items.put_nowait(item)


class BatchEngine(Protocol):
    """The part that computes; only the engine's thread calls it."""

    forward_passes: int
    context_tokens: int

    @property
    def running(self) -> int: ...

    def step(self, newcomers: list[Job]) -> None:
        """Take the newcomers in, compute one token for every job, deliver what came out."""

    def fail(self, error: BaseException) -> None:
        """End all jobs by `error` and start afresh."""
