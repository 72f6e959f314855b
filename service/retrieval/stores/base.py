"""What a collection needs from its two stores besides searching: filling, listing and repairing.

Methods without `async` block: call them in a worker thread of anyio. Stores on servers hand them to
the event loop, which that thread knows (`threads.on_loop`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from service.retrieval.base import SearchStore
from service.retrieval.ingest.documents import PassageRecord

# Candidates found in compressed vectors, for each one wanted; the full vectors rank them again.
OVERSAMPLING: Final = 2.0


class LexicalStore(SearchStore, Protocol):
    """A BM25 store. It is the authority: a document exists if it is stored here."""

    def count_passages(self) -> int: ...

    def count_documents(self) -> int: ...

    def hashes(self, document_ids: Sequence[str]) -> dict[str, str]:
        """Return the content hash of each of these documents that is stored."""

    def document(self, document_id: str) -> list[PassageRecord]:
        """Return a document's passages in order; empty if there is no such document."""

    def known(self, passage_ids: Sequence[str]) -> set[str]:
        """Return which of these passages are stored."""

    def records(self) -> Iterator[PassageRecord]:
        """Return every passage, in a consistent state."""

    def replace(self, document_ids: Sequence[str], records: Sequence[PassageRecord]) -> None:
        """Delete these documents and add `records`. The next search sees all of it."""

    def tidy(self) -> None:
        """Undo an interrupted `replace`."""

    def close(self) -> None: ...


class VectorStore(SearchStore, Protocol):
    """Stores the vectors of the same passages, by passage id."""

    def count_passages(self) -> int: ...

    def hashes(self, passage_ids: Sequence[str]) -> dict[str, str]:
        """Return the content hash (of the document) of each of these passages that is stored."""

    def hash_pages(self) -> Iterator[dict[str, str]]:
        """Yield the content hash of every passage, by passage id. Points may be deleted
        meanwhile."""

    def payload_pages(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Yield what is stored with every vector (`points.payload_of`)."""

    def upsert(self, records: Sequence[PassageRecord], vectors: Sequence[Sequence[float]]) -> None:
        """Add or overwrite points, durably."""

    def delete(self, passage_ids: Sequence[str]) -> None: ...

    def flush(self) -> None: ...

    async def optimize(self) -> None:
        """Build the structures that make large collections fast, if they are due and the store does
        not build them itself. The caller prevents writes meanwhile; searches continue."""

    def close(self) -> None: ...
