"""`revelator ingest`: add files to a collection, in this process or through a running server:
documents in bounded batches, or all in one request with `--replace`, which replaces the
collection's contents atomically."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from rich.console import Console
from rich.markup import escape

from service.cli.options import IngestOptions
from service.client import PATIENCE_S, Client
from service.core.errors import ConfigurationError, InvalidRequest, NotFound, RevelatorError
from service.core.extras import importing
from service.core.locks import find_server
from service.core.progress import shown_stages
from service.core.settings import Settings
from service.core.settings.urls import shown
from service.retrieval.collections.manifest import check_name
from service.retrieval.documents import Document, check_access
from service.retrieval.embedding.contract import Embedder
from service.retrieval.factory import Retrieval, open_retrieval
from service.retrieval.ingest.formats import FORMATS
from service.retrieval.ingest.formats.base import STANDARD_INPUT
from service.retrieval.ingest.pipeline import IngestResult, Listener, ingest, take
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

GONE = "removed, because their files no longer contain them"
LOOK_S = 2.0  # seconds between two looks at the folders that are watched
MOST_SHOWN = 100  # invalid lines that are printed; the totals count all of them
# Documents and characters of a request, so that its work does not delay the server's questions.
BATCH_DOCUMENTS = 64
BATCH_CHARACTERS = 1_000_000
PAGE = 1_000  # documents of a page of a list
AGAIN: Final = "run the same command again, which continues after what is indexed"
START_AGAIN: Final = (
    "the collection is unchanged; run the same command again, --replace starts from the beginning"
)


Stamps = dict[SourceFile, tuple[int, int]]


async def run_ingest(files: Sequence[Source], options: IngestOptions, settings: Settings) -> int:
    """Ingest and print. Returns the exit code: 0, or 1 if anything failed.

    Uses the server at `url`, else the server that owns the data directory, else this process, on
    `ray` if an address is given. Raises RevelatorError for problems that stop the command.
    """
    check_name(options.collection)
    for path in files:
        if isinstance(path, Path) and path != STANDARD_INPUT and not path.exists():
            raise InvalidRequest(f"{path} does not exist")
    if options.format not in (None, *FORMATS):
        known = ", ".join(FORMATS)
        raise InvalidRequest(f"--format {options.format!r} is unknown; known: {known}")
    if options.access:
        check_access(list(options.access))
    base = find_server(settings.data_dir, options.url)
    if options.ray and base:
        raise ConfigurationError(
            "--ray writes to the data directory directly, which is in use by the server at "
            f"{shown(base)}; stop the server, or ingest without --ray"
        )
    console = Console()
    with _listener(console) as listener:
        if base:
            console.print(f"Using the server at {shown(base)}.")
            upload = Upload(base, files, options, settings, listener)
            report = await (upload.replace() if options.replace else upload.ingest())
        else:
            with _embedder_on(options.ray, settings) as embedder:
                async with (
                    open_retrieval(settings, embedder=embedder, patience_s=PATIENCE_S) as retrieval,
                    _new_collection(retrieval, options),
                ):
                    report = await ingest(
                        files, options.collection, retrieval.collections, listener, options.format,
                        access=options.access, replace=options.replace,
                    )  # fmt: skip
    _print_totals(console, report, options.collection, embedded=not base)
    return 1 if report.failed else 0


async def watch(folders: Sequence[Path], run: Callable[[Sequence[Source]], Awaitable[int]]) -> int:
    """Call `run` with the files of the folders, and then, until cancelled, with those that have
    changed or were removed since. A folder that is away or empty removes nothing. What failed as a
    whole is tried again."""
    if missing := [path for path in folders if not path.is_dir()]:
        raise InvalidRequest(f"--watch follows folders; {missing[0]} is none")
    seen: Stamps = {}
    while True:
        now = await anyio.to_thread.run_sync(_stamps, folders)
        if now is not None:
            changed: list[Source] = [file for file, stamp in now.items() if seen.get(file) != stamp]
            changed += [WholeFile(file.label, frozenset()) for file in seen if file not in now]
            try:
                if changed:
                    await run(changed)
                seen = now
            except RevelatorError as error:
                if not seen:
                    raise
                Console(stderr=True).print(f"{error.detail}; trying again", markup=False)
        await anyio.sleep(LOOK_S)


def _stamps(folders: Sequence[Path]) -> Stamps | None:
    """Return what changes when a file does, of each file; None if a folder has no file, since its
    disk may be away. Blocking."""
    found: Stamps = {}
    for folder in folders:
        files = [source for source in expand([folder]) if isinstance(source, SourceFile)]
        if not files:
            return None
        labels = {file.label for file in found}  # the first of two files of one name counts
        for file in (file for file in files if file.label not in labels):
            with suppress(FileNotFoundError):  # it was removed meanwhile
                status = file.path.stat()
                found[file] = status.st_mtime_ns, status.st_size
    return found if all(folder.is_dir() for folder in folders) else None


@contextmanager
def _embedder_on(ray: str | None, settings: Settings) -> Iterator[Embedder | None]:
    """Open the embedder on the Ray cluster at an address; None without one. Raises
    ConfigurationError if Ray is not installed."""
    if ray is None:
        yield None
        return
    with importing("--ray", "ray"):
        from service.retrieval.embedding.on_ray import RayEmbedder, connected  # noqa: PLC0415
    with connected(ray):
        yield RayEmbedder(settings.retrieval)


@asynccontextmanager
async def _new_collection(retrieval: Retrieval, options: IngestOptions) -> AsyncIterator[None]:
    """Create the collection if necessary, and delete it again if nothing was written. The error of
    a replacement says that nothing has changed.

    Raises ConfigurationError, before that, if the embedding model cannot run here.
    """
    if problem := retrieval.embedder.problem():
        raise ConfigurationError(problem)
    name = options.collection
    is_new = name not in await retrieval.collections.names()
    await retrieval.collections.create(name, analysis=options.analysis)
    try:
        yield
    except RevelatorError as error:
        if options.replace and not isinstance(error, InvalidRequest):
            error.detail = f"{error.detail}; {START_AGAIN}"
        raise
    finally:
        with anyio.CancelScope(shield=True):
            manifest = await retrieval.collections.manifest(name)
            if is_new and manifest.state == "complete" and not manifest.documents:
                await retrieval.collections.delete(name)


@contextmanager
def _listener(console: Console) -> Iterator[Listener]:
    """Show the progress, and print invalid lines above it."""
    with shown_stages("bytes", console) as follow:
        shown = 0

        def progress(done: int, total: int | None, documents: int) -> None:
            follow("ingest", done, total, f"{documents:,} documents")

        def problem(found: SourceProblem) -> None:
            nonlocal shown
            shown += 1
            if shown <= MOST_SHOWN:
                line = f"[red]invalid[/] {escape(str(found))}"
                console.print(line, highlight=False, soft_wrap=True)
            elif shown == MOST_SHOWN + 1:
                console.print("further invalid lines are only counted")

        yield Listener(progress, problem)


def _print_totals(
    console: Console, report: IngestResult, collection: str, *, embedded: bool
) -> None:
    """Print the totals. `embedded` is unknown if a server did the work."""
    console.print(
        f"collection {collection}: {report.indexed:,} documents indexed, "
        f"{report.unchanged:,} unchanged, {report.failed:,} failed"
        + (f"; {report.embedded:,} passages embedded" if embedded else "")
        + (f"; {report.removed:,} {GONE}" if report.removed else ""),
        highlight=False,
        soft_wrap=True,
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
            gone = [
                document.id for document in page.documents if document.id not in file.document_ids
            ]
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
