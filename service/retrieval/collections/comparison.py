"""Compares a collection's two stores passage by passage, page by page: memory stays bounded.

First the BM25 store is read through, and the dense one asked for the vectors of each page. Only if
that leaves vectors unexplained is the dense store read through as well, and the BM25 store asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal, TypeVar

import anyio
import anyio.to_thread

from service.retrieval.collections.collection import Collection
from service.retrieval.collections.manifest import EMPTY_HASH, add_to_hash
from service.retrieval.ingest.documents import Record

PAGE: Final = 1_000  # passages looked at together

# stray: a passage of no document, or of a version that was replaced; lacking: no vector; outdated:
# the vector of another version; surplus: a vector of no passage.
Kind = Literal["stray", "lacking", "outdated", "surplus"]

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Difference:
    """Passages of one page that differ in one way; `records` where the BM25 store has them."""

    kind: Kind
    ids: tuple[str, ...]
    records: tuple[Record, ...] = ()


@dataclass(slots=True)
class Tally:
    """What the BM25 store holds of whole documents, as far as it has been read."""

    documents: int = 0
    passages: int = 0
    vectors: int = 0  # of these passages, of whichever version
    content_hash: str = EMPTY_HASH
    fields: set[str] = field(default_factory=set)

    def add(self, record: Record) -> None:
        self.passages += 1
        if record.part == 0:
            self.documents += 1
            pair = (record.document_id, record.content_hash)
            self.content_hash = add_to_hash(self.content_hash, [pair])
            self.fields.update(record.passage.metadata)


async def differences(collection: Collection, tally: Tally) -> AsyncIterator[Difference]:
    """Every difference, while nobody else writes. `tally` counts along.

    What is found of one page may be mended before the next is asked for.
    """
    async for page in _pages(collection.bm25.records()):
        for found in await anyio.to_thread.run_sync(_examine, collection, page, tally):
            yield found
    held = await anyio.to_thread.run_sync(collection.dense.count_passages)
    if held <= tally.vectors:
        return
    async for pages in _pages(collection.dense.hash_pages(), 1):
        ids = [passage_id for hashes in pages for passage_id in hashes]
        known = await anyio.to_thread.run_sync(collection.bm25.known, ids)
        surplus = tuple(each for each in ids if each not in known)
        if surplus:
            yield Difference("surplus", surplus)


def sort_page(
    page: Sequence[Record], newest: dict[str, str], vectors: dict[str, str]
) -> dict[Kind, list[Record]]:
    """What is amiss with a page of the BM25 store.

    `newest` has the content hash of each document that is there, `vectors` that of each vector.
    """
    amiss: dict[Kind, list[Record]] = {"stray": [], "lacking": [], "outdated": []}
    for record in page:
        held = vectors.get(record.passage.passage_id)
        if newest.get(record.document_id) != record.content_hash:
            amiss["stray"].append(record)
        elif held is None:
            amiss["lacking"].append(record)
        elif held != record.content_hash:
            amiss["outdated"].append(record)
    return amiss


def _examine(collection: Collection, page: Sequence[Record], tally: Tally) -> list[Difference]:
    """Blocking."""
    newest = collection.bm25.hashes(sorted({record.document_id for record in page}))
    vectors = collection.dense.hashes([record.passage.passage_id for record in page])
    amiss = sort_page(page, newest, vectors)
    stray = {id(record) for record in amiss["stray"]}
    for record in page:
        if id(record) not in stray:
            tally.add(record)
            tally.vectors += record.passage.passage_id in vectors
    return [
        Difference(kind, tuple(each.passage.passage_id for each in records), tuple(records))
        for kind, records in amiss.items()
        if records
    ]


async def _pages(items: Iterator[Item], size: int = PAGE) -> AsyncIterator[list[Item]]:
    """An iterator that blocks, a page at a time in worker threads."""
    try:
        while page := await anyio.to_thread.run_sync(lambda: list(islice(items, size))):
            yield page
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(close)
