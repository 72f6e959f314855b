"""`ingest --replace` through a running server: all documents in one body, which is switched to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final

import anyio.to_thread

from service.core.settings import Settings
from service.retrieval.ingest.documents import Document
from service.retrieval.ingest.remote import NDJSON, batches_of, encoded
from service.retrieval.ingest.run import IngestReport, Listener, Progress
from service.retrieval.ingest.sources import Entry, Problem, read_files, total_bytes
from service.retrieval.remote import send, session_with

AFRESH: Final = (
    "the collection is unchanged; run the same command again, --replace starts from the beginning"
)
TIMEOUT_S: Final = 86_400.0  # of the whole; the server gives up on 30 s without a byte


async def replace_through(
    url: str,
    files: Sequence[Path],
    collection: str,
    settings: Settings,
    listener: Listener,
    format: str | None = None,
) -> IngestReport:
    """Let the files' documents take the place of what the collection at `url` holds; made if
    missing. Raises as `ingest_through` does; nothing is replaced then."""
    base = f"{url.rstrip('/')}/collections/{collection}"
    total = await anyio.to_thread.run_sync(total_bytes, files)
    report = IngestReport()
    batches = batches_of(read_files(files, format))
    body = _body(batches, total, report, listener)
    async with session_with(url, settings, TIMEOUT_S, AFRESH) as session:
        await send(session, "PUT", base, b"{}")
        answer = await send(session, "PUT", f"{base}/documents", body, NDJSON, AFRESH)
    report.indexed, report.unchanged = answer["indexed"], answer["unchanged"]
    for failure in answer["failed"]:
        problem = Problem("what was sent", failure["index"] + 1, failure["problem"])
        report.fail(problem)
        listener.problem(problem)
    return report


async def _body(
    batches: Iterator[list[Entry]], total: int | None, report: IngestReport, listener: Listener
) -> AsyncIterator[bytes]:
    done = 0
    while batch := await anyio.to_thread.run_sync(next, batches, None):
        for entry in batch:
            if isinstance(entry.found, Problem):
                report.fail(entry.found)
                listener.problem(entry.found)
            elif isinstance(entry.found, Document):
                done += 1
                yield encoded(entry.found) + b"\n"
        listener.progress(Progress(batch[-1].position, total, done))
