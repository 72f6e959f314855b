"""A collection's two stores, apart from searching: writing, listing and repairing.

A write that has begun goes on to its end when its caller is cancelled, so that it cannot come after
a later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import anyio

from service.core.concurrency import retrieve
from service.core.errors import StoreError
from service.core.settings.retrieval import Quantization
from service.retrieval.base import Principals, SearchStore
from service.retrieval.documents import PassageRecord, digest, passage_ids

Key = Literal["passage_id", "head"]


class LexicalStore(SearchStore, Protocol):
    """A BM25 store. It is the authority on what a collection contains: a document exists if it is
    stored here."""

    async def count_passages(self) -> int: ...

    async def constants(self) -> str:
        """Return BM25's constants of this collection, as a text."""

    async def among(self, field: Key, values: Sequence[str]) -> list[PassageRecord]:
        """Return the stored passages whose id, or whose document's id, is one of these. Of a
        document (`head`) it is the first passage."""

    async def counts(self, principals: Principals) -> tuple[int, int]:
        """Return how many documents and passages these principals may see."""

    async def heads(
        self, after: str, most: int, principals: Principals, *, file: str = "", text: str = ""
    ) -> list[PassageRecord]:
        """Return the first passages of the documents whose id sorts after `after` and which
        `principals` may see, at most `most`, sorted by the document's id. What is still being
        written may be missing.

        Of a `file`: the documents that it was cut into; ids are its name, alone or before `#`.
        With `text`: those whose id contains it in any case, or whose title has all its words.
        """

    async def hashes(self, document_ids: Sequence[str]) -> dict[str, str]:
        """Return the content hash of each of these documents that is stored."""
        heads = await self.among("head", document_ids)
        return {head.document_id: head.content_hash for head in heads}

    async def document(self, document_id: str) -> list[PassageRecord]:
        """Return a document's passages in order; empty if there is no such document."""
        *_, newest = [None, *await self.among("head", [document_id])]
        if newest is None:
            return []
        found = await self.among("passage_id", passage_ids(document_id, newest.parts))
        current = (record for record in found if record.content_hash == newest.content_hash)
        return sorted(current, key=lambda record: record.part)

    async def known(self, passage_ids: Sequence[str]) -> set[tuple[str, int]]:
        """Return the ids among these that are stored in a complete document, each with the digest
        of its passage (`documents.digest`)."""
        found = await self.among("passage_id", passage_ids)
        newest = await self.hashes(sorted({record.document_id for record in found}))
        return {
            (record.passage.passage_id, digest(record.passage))
            for record in found
            if newest.get(record.document_id) == record.content_hash
        }

    def records(self) -> AsyncIterator[list[PassageRecord]]:
        """Yield every passage, in pages. Nothing may be written meanwhile."""

    async def replace(self, document_ids: Sequence[str], records: Sequence[PassageRecord]) -> None:
        """Delete these documents and add `records`. The next search sees all of the change."""

    async def tidy(self) -> None:
        """Undo a `replace` that was interrupted."""

    async def release(self) -> None:
        """Give back the threads and the memory that writing needs, until the next write."""

    async def close(self) -> None: ...


class VectorStore(SearchStore, Protocol):
    """Stores the vectors of the same passages, keyed by passage id."""

    async def count_passages(self) -> int: ...

    async def hashes(self, passage_ids: Sequence[str]) -> dict[str, str]:
        """Return the content hash (of the document) of each of these passages that is stored."""

    def payloads(
        self, fields: list[str] | bool = True
    ) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """Yield pages of the payloads of all vectors (see `points.payload_of`), or of these
        `fields` of them. Points may be deleted between pages."""

    async def compression(self) -> Quantization:
        """Return how the vectors are compressed in memory."""

    async def upsert(
        self, records: Sequence[PassageRecord], vectors: Sequence[Sequence[float]]
    ) -> None:
        """Add or overwrite points. They are durable when this returns."""

    async def delete(self, passage_ids: Sequence[str]) -> None: ...

    async def flush(self) -> None: ...

    async def optimize(self) -> None:
        """Build the index structures that keep large collections fast, if they are due and the
        store does not build them itself. The caller prevents writes meanwhile; searches
        continue."""

    async def close(self) -> None: ...


class Unopened:
    """Stands for a store that could not be opened: every use but `close` raises the reason, so that
    the other side of the collection goes on."""

    def __init__(self, backend: str, why: StoreError) -> None:
        self.backend = backend
        self.why = why

    def __getattr__(self, name: str) -> Any:
        raise self.why

    async def close(self) -> None: ...

    async def release(self) -> None: ...


def foreign(place: str, held: int, name: str) -> StoreError:
    return StoreError(
        f"{place} has {held:,} passages in {name!r} that this data directory does not know; they "
        "may belong to another gateway. Use another collection name, or delete them there"
    )


Item = TypeVar("Item")


def parts(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `size`."""
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


async def to_its_end(work: Coroutine[Any, Any, Item]) -> Item:
    """Await `work`, which is bounded in time. A caller that is cancelled meanwhile waits for its
    end."""
    task = asyncio.create_task(work)
    task.add_done_callback(retrieve)
    with anyio.CancelScope(shield=True):
        try:
            await asyncio.wait({task})
        finally:
            await asyncio.wait({task})
    return task.result()
