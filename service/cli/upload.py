"""Ingest through a running server: documents in bounded batches to its HTTP API, or all in one body
with `--replace`, which replaces the collection's contents atomically."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

import anyio.to_thread
import orjson

from service.client import send, send_patiently, session_with
from service.core.errors import NotFound
from service.core.settings import Settings
from service.retrieval.documents import Document
from service.retrieval.ingest.pipeline import IngestResult, Listener, Progress, take
from service.retrieval.ingest.sources import (
    SourceEntry,
    SourceProblem,
    WholeFile,
    read_files,
    total_bytes,
)

if TYPE_CHECKING:
    import aiohttp


# Documents and characters of a request, so that its work does not delay the server's questions.
BATCH_DOCUMENTS = 64
BATCH_CHARACTERS = 1_000_000
NDJSON = "application/x-ndjson"
MORE = "?more=true"  # until the last request, which is empty, the collection stays `building`
TIMEOUT_S = 300.0  # of one request: embedding 64 documents on a busy machine


async def ingest_through(
    url: str,
    files: Sequence[Path],
    collection: str,
    settings: Settings,
    listener: Listener,
    format: str | None = None,
) -> IngestResult:
    """Create the collection at `url` if necessary, and post the files' documents to it. Files
    without a valid document create nothing.

    `embedded` stays 0, because the server does not report it. Raises StoreError if the server
    cannot be reached, and InvalidRequest or ConfigurationError with its message if it refuses.
    """
    base = f"{url.rstrip('/')}/collections/{collection}"
    total = await anyio.to_thread.run_sync(total_bytes, files)
    report, done = IngestResult(), 0
    entries = read_files(files, format)
    async with session_with(url, settings, TIMEOUT_S) as session:
        while batch := await _next_batch(entries):
            if not done and any(isinstance(entry.found, Document) for entry in batch):
                await _create(session, base)
            await _post(session, f"{base}/documents", batch, report, listener)
            for entry in batch:
                if isinstance(entry.found, WholeFile):
                    report.removed += await _keep(session, f"{base}/documents", entry.found)
            done += sum(isinstance(entry.found, Document) for entry in batch)
            listener.progress(Progress(batch[-1].position, total, done))
        if done:
            await send_patiently(session, "POST", f"{base}/documents", kind=NDJSON)
    return report


async def _create(session: aiohttp.ClientSession, base: str) -> None:
    """Create the collection unless it exists, because a key that may only write must not create
    one.
    """
    try:
        await send_patiently(session, "POST", f"{base}/documents{MORE}", kind=NDJSON)
    except NotFound:
        await send_patiently(session, "PUT", base, b"{}")


async def _next_batch(entries: Iterator[SourceEntry]) -> list[SourceEntry]:
    return await anyio.to_thread.run_sync(take, entries, BATCH_DOCUMENTS, BATCH_CHARACTERS)


async def _post(
    session: aiohttp.ClientSession,
    url: str,
    batch: Sequence[SourceEntry],
    report: IngestResult,
    listener: Listener,
) -> None:
    for entry in batch:
        if isinstance(entry.found, SourceProblem):
            report.fail(entry.found)
            listener.problem(entry.found)
    sent = [entry for entry in batch if isinstance(entry.found, Document)]
    if not sent:
        return
    lines = [encoded(entry.found) for entry in sent if isinstance(entry.found, Document)]
    answer = await send_patiently(session, "POST", url + MORE, b"\n".join(lines), NDJSON)
    report.indexed += answer["indexed"]
    report.unchanged += answer["unchanged"]
    for failure in answer["failed"]:
        entry = sent[failure["index"]]
        problem = SourceProblem(entry.file, entry.line, failure["problem"])
        report.fail(problem)
        listener.problem(problem)


async def _keep(session: aiohttp.ClientSession, url: str, file: WholeFile) -> int:
    """Delete the stored documents of a file that are no longer in it. Returns their number."""
    deleted = 0
    after: str | None = ""
    while after is not None:
        query = urlencode({"file": file.name, "limit": 1_000, "after": after})
        page = await send(session, "GET", f"{url}?{query}")
        after = page["next"]
        gone = [each["id"] for each in page["documents"] if each["id"] not in file.document_ids]
        for document_id in gone:
            with suppress(NotFound):  # another client has deleted it
                await send_patiently(session, "DELETE", f"{url}/{quote(document_id, safe='')}")
        deleted += len(gone)
    return deleted


def encoded(document: Document) -> bytes:
    own = {"id": document.id, "title": document.title, "text": document.text}
    return orjson.dumps({**document.metadata, **own})


START_AGAIN: Final = (
    "the collection is unchanged; run the same command again, --replace starts from the beginning"
)
# seconds for the whole request; the server gives up after 30 s without a byte
REPLACE_TIMEOUT_S: Final = 86_400.0


async def replace_through(
    url: str,
    files: Sequence[Path],
    collection: str,
    settings: Settings,
    listener: Listener,
    format: str | None = None,
) -> IngestResult:
    """Replace the contents of the collection at `url` atomically by the files' documents. Creates
    the collection if necessary. Raises as `ingest_through` does; then nothing is replaced."""
    base = f"{url.rstrip('/')}/collections/{collection}"
    total = await anyio.to_thread.run_sync(total_bytes, files)
    report = IngestResult()
    body = _body(read_files(files, format), total, report, listener)
    async with session_with(url, settings, REPLACE_TIMEOUT_S, START_AGAIN) as session:
        await send(session, "PUT", base, b"{}")
        answer = await send(session, "PUT", f"{base}/documents", body, NDJSON, START_AGAIN)
    report.indexed, report.unchanged = answer["indexed"], answer["unchanged"]
    for failure in answer["failed"]:
        problem = SourceProblem("upload, document", failure["index"] + 1, failure["problem"])
        report.fail(problem)
        listener.problem(problem)
    return report


async def _body(
    entries: Iterator[SourceEntry],
    total: int | None,
    report: IngestResult,
    listener: Listener,
) -> AsyncIterator[bytes]:
    done = 0
    while batch := await _next_batch(entries):
        for entry in batch:
            if isinstance(entry.found, SourceProblem):
                report.fail(entry.found)
                listener.problem(entry.found)
            elif isinstance(entry.found, Document):
                done += 1
                yield encoded(entry.found) + b"\n"
        listener.progress(Progress(batch[-1].position, total, done))
