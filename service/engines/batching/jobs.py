"""What crosses the border between the event loop and the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from service.engines.base import Delta, GenerationRequest
from service.engines.signals import ScoreRequest, Scoring, SignalDelta, SignalRequest, Span

Item = Delta | SignalDelta | Scoring | BaseException


class Call:
    """The thread delivers items into the caller's loop; who leaves sets `cancelled`."""

    __slots__ = ("cancelled", "items", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.items: asyncio.Queue[Item] = asyncio.Queue()
        self.cancelled = False


class Job(Call):
    """One generation."""

    __slots__ = ("request",)

    def __init__(self, request: GenerationRequest, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.request = request


class SignalJob(Job):
    """One generation with signals.

    The thread sets `spans` (those of the prompt's tokens) before the first item, and adds row t to
    `rows` before it delivers draft token t: nothing that is there is ever changed, so the caller
    reads both from its own thread.
    """

    __slots__ = ("attention", "rows", "spans")

    def __init__(self, request: SignalRequest, loop: asyncio.AbstractEventLoop) -> None:
        plain = GenerationRequest(
            prompt=request.prompt, max_tokens=request.max_tokens, stop=request.stop
        )
        super().__init__(plain, loop)
        self.attention = request.attention
        self.spans: list[Span] = []
        self.rows: list[Any] = []


class ScoreJob(Call):
    """One text to read."""

    __slots__ = ("request",)

    def __init__(self, request: ScoreRequest, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.request = request


AnyJob = Job | ScoreJob


def deliver(items: Iterable[tuple[Call, Item]]) -> None:
    """Hand items over to their loops, one wake-up per loop; those of closed loops are dropped."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Call, Item]]] = {}
    for job, item in items:
        by_loop.setdefault(job.loop, []).append((job, item))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put, batch)
        except RuntimeError:  # the loop is closed: nobody waits there any more
            for job, _ in batch:
                job.cancelled = True


def _put(batch: list[tuple[Call, Item]]) -> None:
    for job, item in batch:
        job.items.put_nowait(item)


class BatchEngine(Protocol):
    """The part that computes; only the engine's thread calls it.

    `no_signals`: why the model gives none, None where it does.
    """

    forward_passes: int
    context_tokens: int
    no_signals: str | None

    @property
    def running(self) -> int: ...

    def spans(self, text: str) -> tuple[Span, ...]:
        """Places of a text's tokens; may be called from any thread."""

    def step(self, newcomers: list[AnyJob]) -> None:
        """Take the newcomers in, compute one token for every job, deliver what came out."""

    def fail(self, error: BaseException) -> None:
        """End all jobs by `error` and start afresh."""
