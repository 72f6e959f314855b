"""What a collection needs of its two stores beside searching: to be filled, listed and mended.

Methods without `async` block: call them in a worker thread of anyio. A store on a server hands
them to the event loop, which that thread knows (`threads.on_loop`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from service.retrieval.base import SearchStore
from service.retrieval.documents import Record


class LexicalStore(SearchStore, Protocol):
    """BM25, and the authority: a document is in when it is in here."""

    def count_passages(self) -> int: ...

    def count_documents(self) -> int: ...

    def hashes(self, document_ids: Sequence[str]) -> dict[str, str]:
        """Content hash of each of these documents that is stored."""

    def document(self, document_id: str) -> list[Record]:
        """Its passages in order; empty when there is no such document."""

    def known(self, passage_ids: Sequence[str]) -> set[str]:
        """Which of these passages are stored."""

    def records(self) -> Iterator[Record]:
        """Every passage, of one moment's state."""

    def replace(self, document_ids: Sequence[str], records: Sequence[Record]) -> None:
        """Delete these documents and add `records`; the next search sees all of it."""

    def tidy(self) -> None:
        """Undo what a killed `replace` left half done."""

    def close(self) -> None: ...


class VectorStore(SearchStore, Protocol):
    """Vectors of the same passages, by passage id."""

    def count_passages(self) -> int: ...

    def hashes(self, passage_ids: Sequence[str]) -> dict[str, str]:
        """Content hash (of the document) of each of these passages that is stored."""

    def hash_pages(self) -> Iterator[dict[str, str]]:
        """Content hash of every passage, by passage id; points may be deleted on the way."""

    def payload_pages(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        """What is stored beside every vector (`points.payload_of`)."""

    def upsert(self, records: Sequence[Record], vectors: Sequence[Sequence[float]]) -> None:
        """Add or overwrite points, durably."""

    def delete(self, passage_ids: Sequence[str]) -> None: ...

    def flush(self) -> None: ...

    async def optimize(self) -> None:
        """Build what makes large collections fast, where it is due and the store does not do so by
        itself. The caller lets nobody write; searches go on."""

    def close(self) -> None: ...
