"""Combines calls made in the same turn of the event loop, or shortly after, into one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import anyio

Query = TypeVar("Query")
Result = TypeVar("Result")


class _Entry(Generic[Query, Result]):
    """One caller's query. It waits, is in flight (`sent` is set when the request ends), or is
    settled."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.sent: anyio.Event | None = None
        self.answer: Result | Exception | None = None


class Batcher(Generic[Query, Result]):
    """Batches queries: `send` receives up to `most` queries and returns a result or an exception
    for each.

    While a request is in flight, further queries wait up to `window_s` seconds for others to join.
    `send` must be safe to repeat: if the caller that sends is cancelled, another caller sends
    again.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Query]], Awaitable[Sequence[Result | Exception]]],
        most: int,
        window_s: float = 0.0,
    ) -> None:
        self._send = send
        self._most = most
        self._window_s = window_s
        self._under_way = 0
        self._waiting: list[_Entry[Query, Result]] = []

    async def ask(self, query: Query) -> Result:
        entry: _Entry[Query, Result] = _Entry(query)
        self._waiting.append(entry)
        try:
            await anyio.sleep(self._window_s if self._under_way else 0)
            while entry.answer is None:
                if entry.sent is None:
                    await self._lead()
                else:
                    await entry.sent.wait()
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
        if isinstance(entry.answer, Exception):
            raise entry.answer
        return entry.answer

    async def _lead(self) -> None:
        batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        sent = anyio.Event()
        for entry in batch:
            entry.sent = sent
        self._under_way += 1
        try:
            answers = await self._send([entry.query for entry in batch])
            for entry, answer in zip(batch, answers, strict=True):
                entry.answer = answer
        except Exception as error:
            for entry in batch:
                entry.answer = error
        finally:
            self._under_way -= 1
            for entry in batch:
                if entry.answer is None:
                    entry.sent = None
                    self._waiting.append(entry)
            sent.set()
