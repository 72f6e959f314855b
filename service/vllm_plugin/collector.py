"""Fetches the signals of all calls from the workers, by one RPC at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from service.engines.signals import AttentionUpdate
from service.vllm_plugin.packets import NOTHING, Floats, Packet, merge_rows, weighted

Rpc = Callable[..., Awaitable[list[Any]]]


class SignalsLost(Exception):
    """The signals of a call are not available; the text says why."""


class Inbox:
    """The data that arrived for one call and were not taken yet; `means` (2, tokens) are the latest
    maxima of a draft, or those of a score, once complete.
    """

    def __init__(self) -> None:
        self.numbers: list[tuple[float, float]] = []
        self.updates: list[Sequence[AttentionUpdate]] = []
        self.rows: dict[int, Floats] = {}
        self.means: Floats = np.zeros((2, 0), np.float32)
        self.error: str | None = None

    def put(self, packets: Sequence[Packet]) -> None:
        """Store one packet of every rank."""
        errors = [packet["error"] for packet in packets if "error" in packet]
        if errors:
            self.error = errors[0]
            return
        heads = [packet["heads"] for packet in packets]
        for of_ranks in zip(*(packet["means"] for packet in packets), strict=True):
            means = weighted(of_ranks, heads).reshape(2, -1)
            self.updates.append(_changes(self.means, means))
            self.means = means
        self.rows |= merge_rows([packet["rows"] for packet in packets], heads)
        sent = np.frombuffer(packets[0]["numbers"], np.float32)  # every rank has all logits
        self.numbers += ((e, logprob) for e, logprob in sent.reshape(-1, 2).tolist())

    def take(self) -> tuple[list[tuple[float, float]], list[Sequence[AttentionUpdate]]]:
        """Return the numbers and updates since the last call. Raises SignalsLost."""
        if self.error is not None:
            raise SignalsLost(self.error)
        taken = self.numbers, self.updates
        self.numbers, self.updates = [], []
        return taken


class Collector:
    def __init__(self, rpc: Rpc) -> None:
        self.worker_calls = 0
        self.worker_bytes = 0
        self._rpc = rpc
        self._inboxes: dict[str, Inbox] = {}
        self._released: list[str] = []
        self._asked: dict[str, list[int]] = {}
        self._next: asyncio.Future[None] | None = None
        self._running: asyncio.Task[None] | None = None

    def open(self, call: str) -> Inbox:
        inbox = self._inboxes[call] = Inbox()
        return inbox

    def close(self, call: str) -> None:
        """Forget a call, here and (soon) on the workers."""
        self._inboxes.pop(call, None)
        self._released.append(call)
        self._start()

    def ask_rows(self, call: str, positions: Sequence[int]) -> None:
        """Request rows of a draft; they are in its inbox after the next `refresh`."""
        self._asked[call] = list(positions)

    async def refresh(self) -> None:
        """Return when a fetch that began after this call has been processed.

        Raises SignalsLost if the workers cannot be reached.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        waiting = self._next
        self._start()
        await asyncio.shield(waiting)

    def _start(self) -> None:
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._next is not None or self._released:
            waiting, self._next = self._next, None
            released, self._released = self._released, []
            asked, self._asked = self._asked, {}
            try:
                self._take(await self._rpc("revelator_fetch", released, list(asked.items())))
            except Exception as error:  # a dead engine raises any exception
                _settle(waiting, SignalsLost(f"the worker did not respond: {error}"))
            else:
                _settle(waiting, None)
        self._running = None

    def _take(self, fetched: Sequence[dict[str, Any]]) -> None:
        self.worker_calls = max(side["calls"] for side in fetched)
        self.worker_bytes = max(side["bytes"] for side in fetched)
        heads = [side["heads"] for side in fetched]
        names = {name for side in fetched for name in side["packets"]}
        for name in names & self._inboxes.keys():
            inbox = self._inboxes[name]
            try:
                inbox.put([side["packets"].get(name, NOTHING) for side in fetched])
            except (KeyError, ValueError) as error:
                inbox.error = f"the worker's ranks disagree about the call ({error})"
        for name in fetched[0]["rows"].keys() & self._inboxes.keys():
            rows = merge_rows([side["rows"][name] for side in fetched], heads)
            self._inboxes[name].rows |= rows


def _changes(before: Floats, after: Floats) -> list[AttentionUpdate]:
    known = np.full_like(after, -1.0)
    known[:, : before.shape[1]] = before
    (keys,) = np.nonzero((after != known).any(axis=0))
    changed = zip(keys.tolist(), *after[:, keys].tolist(), strict=True)
    return [AttentionUpdate(*each) for each in changed]


def _settle(waiting: asyncio.Future[None] | None, error: Exception | None) -> None:
    if waiting is None or waiting.done():
        return
    if error is None:
        waiting.set_result(None)
    else:
        waiting.set_exception(error)
        waiting.exception()  # marks it as retrieved, whether or not somebody still waits
