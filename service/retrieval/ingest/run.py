"""Write documents to a collection: in batches, idempotent, and resumable after kill -9.

`writer.py` explains which order of writes makes it resumable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread

from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.writer import CollectionWriter
from service.retrieval.ingest.ahead import BATCH_DOCUMENTS, Batch, ahead, size_of, take
from service.retrieval.ingest.documents import BadDocument, Document, parse_document
from service.retrieval.ingest.sources import Entry, Problem, read_files, total_bytes

MOST_FAILURES = 1_000  # kept in a report; the count goes on


@dataclass(frozen=True, slots=True)
class Progress:
    """Processed bytes of the files (an estimate within a batch), and documents.

    `total_bytes` is None if it is unknown, as for standard input.
    """

    done_bytes: int
    total_bytes: int | None
    documents: int


@dataclass(slots=True)
class IngestReport:
    """What an ingest did. `failures` keeps the first 1,000; `failed` counts all.

    `embedded` counts the passages that the embedding model processed.
    """

    indexed: int = 0
    unchanged: int = 0
    failed: int = 0
    embedded: int = 0
    failures: list[Problem] = field(default_factory=list)

    def fail(self, problem: Problem) -> None:
        self.failed += 1
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(problem)


@dataclass(frozen=True, slots=True)
class Listener:
    """Is notified of progress after each embedded part of a batch, and of each invalid line."""

    progress: Callable[[Progress], None] = lambda progress: None
    problem: Callable[[Problem], None] = lambda problem: None


async def ingest(
    files: Sequence[Path],
    collection: str,
    collections: Collections,
    listener: Listener | None = None,
    format: str | None = None,
    *,
    replace: bool = False,
) -> IngestReport:
    """Add files to an existing collection. Invalid rows are reported; the others are indexed.

    Without `format`, the format is detected per file. Searches continue meanwhile and report
    `index-incomplete`; with `replace` they use the old contents until the new ones replace them
    atomically. Raises NotFound, InvalidRequest (the sample) and ConfigurationError (embedding
    model).
    """
    total = await anyio.to_thread.run_sync(total_bytes, files)
    entries = read_files(files, format)
    writing = collections.replacing if replace else collections.writing
    async with writing(collection) as writer:

        async def prepare(batch: list[Entry]) -> Batch:
            documents = [entry.found for entry in batch if isinstance(entry.found, Document)]
            return Batch(batch, await writer.chunk(documents))

        async with ahead(lambda: take(entries, size_of), prepare) as batches:
            report = await write_batches(writer, batches, total, listener or Listener())
    report.embedded = writer.embedded  # also what the end embedded that was missing
    return report


async def write_batches(
    writer: CollectionWriter,
    batches: AsyncIterator[Batch],
    total_bytes: int | None,
    listener: Listener,
) -> IngestReport:
    """Write batches in order and report what became of them."""
    report = IngestReport()
    tally = _Tally(report, listener, total_bytes)
    async for batch in batches:
        await _write(writer, batch, tally)
    report.embedded = writer.embedded
    return report


async def ingest_documents(
    documents: Sequence[Any], collection: str, collections: Collections
) -> dict[str, Any]:
    """The body of `POST /collections/{name}/documents`.

    `{indexed, unchanged, failed: [{index, id, problem}]}`; `documents` are decoded JSON values.
    Raises the same errors as `ingest`.
    """
    good, failed = [], []
    for index, value in enumerate(documents):
        try:
            good.append(parse_document(value))
        except BadDocument as error:
            given = value.get("id") if isinstance(value, dict) else None
            failed.append({"index": index, "id": given, "problem": str(error)})
    indexed = unchanged = 0
    async with collections.writing(collection) as writer:
        for batch in _distinct(good):
            written = await writer.write(batch)
            indexed += written.indexed
            unchanged += written.unchanged
    return {"indexed": indexed, "unchanged": unchanged, "failed": failed}


@dataclass(slots=True)
class _Tally:
    report: IngestReport
    listener: Listener
    total: int | None
    documents: int = 0
    position: int = 0

    def tell(self, position: int, documents: int) -> None:
        self.listener.progress(Progress(position, self.total, documents))


async def _write(writer: CollectionWriter, batch: Batch, tally: _Tally) -> None:
    for entry in batch.entries:
        if isinstance(entry.found, Problem):
            tally.report.fail(entry.found)
            tally.listener.problem(entry.found)
    start, end = tally.position, batch.entries[-1].position
    for part in _distinct(batch.documents):

        def on_part(share: float) -> None:
            tally.tell(start + int(share * (end - start)), tally.documents)

        written = await writer.write(part, on_part, batch.chunked)
        tally.report.indexed += written.indexed
        tally.report.unchanged += written.unchanged
        tally.documents += len(part)
    tally.position = end
    tally.tell(end, tally.documents)


def _distinct(documents: Sequence[Document]) -> Iterator[list[Document]]:
    """Batches without a repeated id: of two documents with one id the later must win."""
    batch: dict[str, Document] = {}
    for document in documents:
        if document.id in batch or len(batch) == BATCH_DOCUMENTS:
            yield list(batch.values())
            batch = {}
        batch[document.id] = document
    if batch:
        yield list(batch.values())
