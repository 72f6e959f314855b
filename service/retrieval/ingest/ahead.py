"""Reads and chunks while the batch before is embedded and written; bounded by one batch each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import anyio
import anyio.to_thread

from service.core.concurrency import first_of
from service.retrieval.ingest.chunks import Chunked
from service.retrieval.ingest.documents import Document
from service.retrieval.ingest.sources import Entry

BATCH_DOCUMENTS = 256  # committed together
BATCH_CHARACTERS = 4_000_000  # of their texts, for documents that are large

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries in order, and by document id what is already made of those that are new."""

    entries: Sequence[Entry]
    chunked: dict[str, Chunked]

    @property
    def documents(self) -> list[Document]:
        return [entry.found for entry in self.entries if isinstance(entry.found, Document)]


def size_of(entry: Entry) -> int:
    """Characters that count towards a batch's bound."""
    return len(entry.found.text) if isinstance(entry.found, Document) else 0


def take(items: Iterator[T], size: Callable[[T], int]) -> list[T]:
    """The next batch; empty at the end. Blocking."""
    batch: list[T] = []
    room = BATCH_CHARACTERS
    for item in islice(items, BATCH_DOCUMENTS):
        batch.append(item)
        room -= size(item)
        if room < 0:
            break
    return batch


@asynccontextmanager
async def ahead(
    read: Callable[[], T | None], prepare: Callable[[T], Awaitable[R]]
) -> AsyncIterator[AsyncIterator[R]]:
    """What `read` gives (blocking, in a thread, until it gives nothing), each prepared, one ahead.

    A failure of either comes out of the block; the end of the block ends both. A read that hangs
    (standard input) is left alone.
    """
    send, receive = anyio.create_memory_object_stream[R](0)

    async def pump() -> None:
        async with send:
            while item := await anyio.to_thread.run_sync(read, abandon_on_cancel=True):
                await send.send(await prepare(item))

    try:
        async with anyio.create_task_group() as group, receive:
            group.start_soon(pump)
            yield receive
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        raise first_of(failures) from None
