"""Ingest through a running server: documents in bounded batches to its HTTP API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
import orjson

from service.core.settings import Settings
from service.retrieval.ingest.documents import Document
from service.retrieval.ingest.run import IngestReport, Listener, Progress
from service.retrieval.ingest.sources import Entry, Problem, read_files, total_bytes
from service.retrieval.remote import send, session_with

if TYPE_CHECKING:
    import aiohttp

BATCH_DOCUMENTS = 64  # a request's work stays short beside the questions the server answers
BATCH_BYTES = 1_000_000  # of them; NDJSON, so a document of any allowed size passes
NDJSON = "application/x-ndjson"
TIMEOUT_S = 300.0  # of one request: embedding 64 documents on a busy machine


async def ingest_through(
    url: str,
    files: Sequence[Path],
    collection: str,
    settings: Settings,
    listener: Listener,
    format: str | None = None,
) -> IngestReport:
    """Make the collection at `url` and post the files' documents to it.

    `embedded` stays 0: the server does not say. Raises StoreError when it cannot be reached,
    InvalidRequest or ConfigurationError with its own words when it refuses.
    """
    base = f"{url.rstrip('/')}/collections/{collection}"
    total = await anyio.to_thread.run_sync(total_bytes, files)
    report, done = IngestReport(), 0
    batches = batches_of(read_files(files, format))
    async with session_with(url, settings, TIMEOUT_S) as session:
        await send(session, "PUT", base, b"{}")
        while batch := await anyio.to_thread.run_sync(next, batches, None):
            await _post(session, f"{base}/documents", batch, report, listener)
            done += sum(isinstance(entry.found, Document) for entry in batch)
            listener.progress(Progress(batch[-1].position, total, done))
    return report


def batches_of(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        weight = len(encoded(entry.found)) if isinstance(entry.found, Document) else 0
        if batch and (len(batch) == BATCH_DOCUMENTS or size + weight > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += weight
    if batch:
        yield batch


async def _post(
    session: aiohttp.ClientSession,
    url: str,
    batch: Sequence[Entry],
    report: IngestReport,
    listener: Listener,
) -> None:
    for entry in batch:
        if isinstance(entry.found, Problem):
            report.fail(entry.found)
            listener.problem(entry.found)
    sent = [entry for entry in batch if isinstance(entry.found, Document)]
    if not sent:
        return
    lines = [encoded(entry.found) for entry in sent if isinstance(entry.found, Document)]
    answer = await send(session, "POST", url, b"\n".join(lines), NDJSON)
    report.indexed += answer["indexed"]
    report.unchanged += answer["unchanged"]
    for failure in answer["failed"]:
        entry = sent[failure["index"]]
        problem = Problem(entry.file, entry.line, failure["problem"])
        report.fail(problem)
        listener.problem(problem)


def encoded(document: Document) -> bytes:
    own = {"id": document.id, "title": document.title, "text": document.text}
    return orjson.dumps({**document.metadata, **own})
