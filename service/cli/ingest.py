"""`revelator ingest`: add files to a collection, in this process or through a running server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
from rich.console import Console
from rich.markup import escape

from service.cli.options import IngestOptions
from service.cli.upload import START_AGAIN, Upload
from service.client import PATIENCE_S
from service.core.errors import ConfigurationError, InvalidRequest, RevelatorError
from service.core.extras import lacking
from service.core.locks import find_server
from service.core.progress import shown_stages
from service.core.settings import Settings
from service.core.settings.urls import shown
from service.retrieval.collections.manifest import check_name
from service.retrieval.documents import check_principals
from service.retrieval.embedding.contract import Embedder
from service.retrieval.factory import EmbeddedStores, open_embedded
from service.retrieval.ingest.formats import FORMATS
from service.retrieval.ingest.formats.base import STANDARD_INPUT
from service.retrieval.ingest.pipeline import IngestResult, Listener, ingest
from service.retrieval.ingest.sources import Source, SourceFile, SourceProblem, WholeFile, expand

GONE = "removed, because their files no longer contain them"
LOOK_S = 2.0  # seconds between two looks at the folders that are watched
MOST_SHOWN = 100  # invalid lines that are printed; the totals count all of them


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
    check_principals(options.access)
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
                    open_embedded(settings, embedder=embedder, patience_s=PATIENCE_S) as stores,
                    _new_collection(stores, options),
                ):
                    report = await ingest(
                        files, options.collection, stores.collections, listener, options.format,
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
            changed: list[Source] = [each for each, stamp in now.items() if seen.get(each) != stamp]
            changed += [WholeFile(each.label, frozenset()) for each in seen if each not in now]
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
        files = [each for each in expand([folder]) if isinstance(each, SourceFile)]
        if not files:
            return None
        labels = {each.label for each in found}  # the first of two files of one name counts
        for each in (each for each in files if each.label not in labels):
            with suppress(FileNotFoundError):  # it was removed meanwhile
                status = each.path.stat()
                found[each] = status.st_mtime_ns, status.st_size
    return found if all(folder.is_dir() for folder in folders) else None


@contextmanager
def _embedder_on(ray: str | None, settings: Settings) -> Iterator[Embedder | None]:
    """Open the embedder on the Ray cluster at an address; None without one. Raises
    ConfigurationError if Ray is not installed."""
    if ray is None:
        yield None
        return
    try:
        from service.retrieval.embedding.on_ray import RayEmbedder, connected  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(lacking("--ray", error, "ray")) from error
    with connected(ray):
        yield RayEmbedder(settings.retrieval)


@asynccontextmanager
async def _new_collection(stores: EmbeddedStores, options: IngestOptions) -> AsyncIterator[None]:
    """Create the collection if necessary, and delete it again if nothing was written. The error of
    a replacement says that nothing has changed.

    Raises ConfigurationError, before that, if the embedding model cannot run here.
    """
    if problem := stores.embedder.problem():
        raise ConfigurationError(problem)
    name = options.collection
    is_new = name not in await stores.collections.names()
    await stores.collections.create(name, analysis=options.analysis)
    try:
        yield
    except RevelatorError as error:
        if options.replace and not isinstance(error, InvalidRequest):
            error.detail = f"{error.detail}; {START_AGAIN}"
        raise
    finally:
        with anyio.CancelScope(shield=True):
            manifest = await stores.collections.manifest(name)
            if is_new and manifest.state == "complete" and not manifest.documents:
                await stores.collections.delete(name)


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
