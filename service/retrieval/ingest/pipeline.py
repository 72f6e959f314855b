"""The ingest of files into a collection: idempotent, and resumable after kill -9.

One batch is read while the batch before it is embedded and written.
`collections/writer.py` explains which order of writes makes it resumable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeVar

from anyio import to_thread

from service.core.concurrency import retrieve
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.originals import Originals
from service.retrieval.collections.writer import CollectionWriter
from service.retrieval.documents import Document
from service.retrieval.ingest.formats import is_named
from service.retrieval.ingest.sources import (
    Source,
    SourceEntry,
    SourceFile,
    SourceProblem,
    WholeFile,
    expand,
    read_files,
    total_bytes,
)

BATCH_DOCUMENTS = 256  # documents committed together
BATCH_CHARACTERS = 4_000_000  # characters of their texts, for documents that are large

T = TypeVar("T")


def take(
    entries: Iterator[SourceEntry],
    documents: int = BATCH_DOCUMENTS,
    characters: int = BATCH_CHARACTERS,
) -> list[SourceEntry]:
    """Return the next batch of at most so many documents, which ends with the one that exceeds so
    many characters, and is empty at the end. Blocking."""
    batch: list[SourceEntry] = []
    room = characters
    for entry in islice(entries, documents):
        batch.append(entry)
        room -= len(entry.found.text) if isinstance(entry.found, Document) else 0
        if room < 0:
            break
    return batch


async def ahead(read: Callable[[], T]) -> AsyncGenerator[T, None]:
    """Yield the results of `read` (blocking, in a thread, until one is empty), one item ahead. A
    `read` that hangs (standard input) is abandoned at the end."""

    async def reading() -> T:
        return await to_thread.run_sync(read, abandon_on_cancel=True)

    task = asyncio.create_task(reading())
    try:
        while item := await task:
            task = asyncio.create_task(reading())
            yield item
    finally:
        task.cancel()
        task.add_done_callback(retrieve)


MOST_FAILURES = 1_000  # failures kept in a report; the count continues


@dataclass(slots=True)
class IngestResult:
    """The result of an ingest. `failures` keeps the first 1,000; `failed` counts all. `read` has
    the files that have documents.

    `embedded` counts the passages that the embedding model processed, `removed` the pages and
    sections that are no longer in their files.
    """

    indexed: int = 0
    unchanged: int = 0
    removed: int = 0
    failed: int = 0
    embedded: int = 0
    failures: list[SourceProblem] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def fail(self, problem: SourceProblem) -> None:
        self.failed += 1
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(problem)


@dataclass(frozen=True, slots=True)
class Listener:
    """Is notified of progress after each embedded part of a batch, and of each invalid line.

    Progress is the processed bytes of the files (an estimate within a batch), all their bytes (None
    if unknown, as for standard input), and the number of documents."""

    progress: Callable[[int, int | None, int], None] = lambda done, total, documents: None
    problem: Callable[[SourceProblem], None] = lambda problem: None


async def ingest(
    files: Sequence[Source],
    collection: str,
    collections: Collections,
    listener: Listener | None = None,
    format: str | None = None,
    *,
    access: Sequence[str] = (),
    replace: bool = False,
) -> IngestResult:
    """Add files to an existing collection. Invalid rows are reported; the others are indexed.

    Without `format`, the format is detected per file; `access` is as in `read_files`. Searches
    continue meanwhile and report `index-incomplete`; with `replace` they use the old contents until
    the new ones replace them atomically. Raises NotFound, InvalidRequest (the sample) and
    ConfigurationError (embedding model)."""
    total = await to_thread.run_sync(total_bytes, files)
    entries = read_files(files, format, access)
    writing = collections.replacing if replace else collections.writing
    async with writing(collection) as writer, collections.reading:
        most = max(BATCH_DOCUMENTS, writer.batch)
        async with aclosing(ahead(lambda: take(entries, most))) as batches:
            report = await _write(writer, batches, total, listener or Listener())
    report.embedded = writer.embedded  # includes missing vectors embedded at the end
    if collections.originals.kept:
        keep = partial(_keep_originals, collections.originals, collection, report.read)
        await to_thread.run_sync(keep, files, format)
    return report


def _keep_originals(
    originals: Originals,
    collection: str,
    read: set[str],
    files: Sequence[Source],
    format: str | None,
) -> None:
    """Keep the files that have documents named after them, and drop those that are there no more.
    Of other files, such as JSONL, the rows are documents with ids and readers of their own."""
    for source in expand(files, format):
        if isinstance(source, WholeFile) and not source.document_ids:
            originals.drop(collection, source.name)
        if not isinstance(source, SourceFile) or source.name not in read:
            continue
        if is_named(source.path, format):
            originals.keep(collection, source.label, source.path)


async def _write(
    writer: CollectionWriter,
    batches: AsyncIterator[list[SourceEntry]],
    total_bytes: int | None,
    listener: Listener,
) -> IngestResult:
    """Write batches in order and report the results."""
    report, start, documents = IngestResult(), 0, 0
    async for batch in batches:
        for entry in batch:
            if isinstance(entry.found, SourceProblem):
                report.fail(entry.found)
                listener.problem(entry.found)
        report.read |= {item.file for item in batch if isinstance(item.found, Document)}
        end = batch[-1].position
        for part in distinct([item.found for item in batch if isinstance(item.found, Document)]):

            def on_part(
                share: float, first: int = start, last: int = end, done: int = documents
            ) -> None:
                position = first + int(share * (last - first))
                listener.progress(position, total_bytes, done)

            indexed, unchanged = await writer.write(part, on_part)
            report.indexed += indexed
            report.unchanged += unchanged
            documents += len(part)
        for entry in batch:
            if isinstance(entry.found, WholeFile):
                file = entry.found
                report.removed += await writer.keep_of_file(file.name, file.document_ids)
        start = end
        listener.progress(end, total_bytes, documents)
    return report


def distinct(documents: Sequence[Document]) -> Iterator[list[Document]]:
    """Yield batches without a repeated id, because the later of two documents must win."""
    batch: dict[str, Document] = {}
    for document in documents:
        if document.id in batch:
            yield list(batch.values())
            batch = {}
        batch[document.id] = document
    if batch:
        yield list(batch.values())
