"""Ingest through a running server: documents in bounded batches, or all in one request with
`--replace`, which replaces the collection's contents atomically."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio.to_thread

from service.cli.options import IngestOptions
from service.client import Client
from service.core.errors import NotFound
from service.core.settings import Settings
from service.retrieval.documents import Document
from service.retrieval.ingest.pipeline import IngestResult, Listener, take
from service.retrieval.ingest.sources import (
    Source,
    SourceEntry,
    SourceProblem,
    WholeFile,
    read_files,
    total_bytes,
)

# Documents and characters of a request, so that its work does not delay the server's questions.
BATCH_DOCUMENTS = 64
BATCH_CHARACTERS = 1_000_000
PAGE = 1_000  # documents of a page of a list
AGAIN: Final = "run the same command again, which continues after what is indexed"
START_AGAIN: Final = (
    "the collection is unchanged; run the same command again, --replace starts from the beginning"
)


@dataclass
class Upload:
    """The documents of files, on their way to a collection of the server at `url`.

    Their problems are told to `listener` and counted in `report`, whose `embedded` stays 0, because
    the server does not report it.
    """

    url: str
    files: Sequence[Source]
    options: IngestOptions
    settings: Settings
    listener: Listener
    report: IngestResult = field(default_factory=IngestResult)

    async def ingest(self) -> IngestResult:
        """Create the collection if necessary, and add the documents. Files without a valid document
        create nothing. Raises as `Client` does."""
        done = 0
        async with Client(self.url, key=self.settings.own_key, again=AGAIN) as client:
            async for batch in self._batches():
                sent = [entry for entry in batch if isinstance(entry.found, Document)]
                if sent and not done:
                    await self._create(client)
                if sent:
                    await self._send(client, sent)
                for entry in batch:
                    if isinstance(entry.found, WholeFile):
                        self.report.removed += await self._keep(client, entry.found)
                done += len(sent)
            if done:
                await client.add_documents(self.options.collection, [])
        return self.report

    async def replace(self) -> IngestResult:
        """Replace the contents of the collection atomically, which is created if necessary. Raises
        as `Client` does; then nothing is replaced."""
        async with Client(self.url, key=self.settings.own_key, again=START_AGAIN) as client:
            await self._put(client)
            answer = await client.replace_documents(self.options.collection, self._documents())
        self.report.indexed, self.report.unchanged = answer.indexed, answer.unchanged
        for failure in answer.failed:
            self._fail(SourceProblem("upload, document", failure.index + 1, failure.problem))
        return self.report

    async def _create(self, client: Client) -> None:
        """Create the collection unless it exists, because a key that may only write must not create
        one; and compare its analysis with one that is given."""
        try:
            await client.add_documents(self.options.collection, [], more=True)
            exists = True
        except NotFound:
            exists = False
        if self.options.analysis or not exists:
            await self._put(client)

    async def _put(self, client: Client) -> None:
        await client.put_collection(self.options.collection, analysis=self.options.analysis)

    async def _send(self, client: Client, sent: Sequence[SourceEntry]) -> None:
        documents = [entry.found.as_json() for entry in sent if isinstance(entry.found, Document)]
        # Until the last request, which is empty, the collection stays `building`.
        answer = await client.add_documents(self.options.collection, documents, more=True)
        self.report.indexed += answer.indexed
        self.report.unchanged += answer.unchanged
        for failure in answer.failed:
            entry = sent[failure.index]
            self._fail(SourceProblem(entry.file, entry.line, failure.problem))

    async def _keep(self, client: Client, file: WholeFile) -> int:
        """Delete the stored documents of a file that are no longer in it. Returns their number."""
        deleted = 0
        after: str | None = ""
        while after is not None:
            page = await client.documents(
                self.options.collection, file=file.name, limit=PAGE, after=after
            )
            gone = [each.id for each in page.documents if each.id not in file.document_ids]
            for document_id in gone:
                with suppress(NotFound):  # another client has deleted it
                    await client.delete_document(self.options.collection, document_id)
            deleted += len(gone)
            after = page.next
        return deleted

    async def _batches(self) -> AsyncIterator[list[SourceEntry]]:
        """Yield what the files contain; the progress is told when a batch is done."""
        total = await anyio.to_thread.run_sync(total_bytes, self.files)
        entries: Iterator[SourceEntry] = read_files(
            self.files, self.options.format, self.options.access
        )
        done = 0
        while batch := await anyio.to_thread.run_sync(
            take, entries, BATCH_DOCUMENTS, BATCH_CHARACTERS
        ):
            for entry in batch:
                if isinstance(entry.found, SourceProblem):
                    self._fail(entry.found)
            yield batch
            done += sum(isinstance(entry.found, Document) for entry in batch)
            self.listener.progress(batch[-1].position, total, done)

    async def _documents(self) -> AsyncIterator[dict[str, Any]]:
        async for batch in self._batches():
            for entry in batch:
                if isinstance(entry.found, Document):
                    yield entry.found.as_json()

    def _fail(self, problem: SourceProblem) -> None:
        self.report.fail(problem)
        self.listener.problem(problem)
