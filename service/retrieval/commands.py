"""`revelator ingest`: add files to a collection, in this process or through a running server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.progress import Task as BarTask
from rich.table import Table
from rich.text import Text

from service.core.errors import ConfigurationError, InvalidRequest, RevelatorError
from service.core.extras import lacking
from service.core.locks import find_server
from service.core.progress import LOGGED_S, Follow, rate_text, shown_stages
from service.core.settings import Settings
from service.core.settings.urls import shown
from service.core.terminal import printable
from service.retrieval.client import send, send_followed, session_with
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.check import CheckReport, StoreDifference
from service.retrieval.collections.manifest import check_name, describe
from service.retrieval.factory import EmbeddedStores, open_embedded
from service.retrieval.ingest.client import START_AGAIN, ingest_through, replace_through
from service.retrieval.ingest.formats import FORMATS
from service.retrieval.ingest.formats.base import STANDARD_INPUT
from service.retrieval.ingest.pipeline import IngestResult, Listener, Progress, ingest
from service.retrieval.ingest.sources import SourceProblem

if TYPE_CHECKING:
    import aiohttp

GONE = "removed, because their files no longer contain them"
MOST_SHOWN = 100  # invalid lines that are printed; the totals count all of them


async def run_ingest(
    files: Sequence[Path],
    collection: str,
    settings: Settings,
    *,
    url: str | None = None,
    format: str | None = None,
    ray: str | None = None,
    replace: bool = False,
) -> int:
    """Ingest and print. Returns the exit code: 0, or 1 if anything failed.

    Uses the server at `url`, else the server that owns the data directory, else this process, on
    `ray` if an address is given. Raises RevelatorError for problems that stop the command.
    """
    check_name(collection)
    for path in files:
        if path != STANDARD_INPUT and not path.exists():
            raise InvalidRequest(f"{path} does not exist")
    if format is not None and format not in FORMATS:
        raise InvalidRequest(f"--format {format!r} is unknown; known: {', '.join(FORMATS)}")
    base = find_server(settings.data_dir, url)
    if ray and base:
        raise ConfigurationError(
            "--ray writes to the data directory directly, which is in use by the server at "
            f"{shown(base)}; stop the server, or ingest without --ray"
        )
    if ray and replace:
        raise ConfigurationError("--replace is not supported with --ray; ingest without --ray")
    console = Console()
    with _progress_listener(console) as listener:
        if base:
            console.print(f"Using the server at {shown(base)}.")
            through = replace_through if replace else ingest_through
            report = await through(base, files, collection, settings, listener, format)
        elif ray:
            report = await _on_ray(ray, files, collection, settings, listener, format)
        else:
            report = await _here(files, collection, settings, listener, format, replace=replace)
    _print_totals(console, report, collection, embedded=not base)
    return 1 if report.failed else 0


async def _here(
    files: Sequence[Path],
    collection: str,
    settings: Settings,
    listener: Listener,
    format: str | None,
    *,
    replace: bool,
) -> IngestResult:
    async with open_embedded(settings) as stores, _new_collection(stores, collection):
        try:
            return await ingest(
                files, collection, stores.collections, listener, format, replace=replace
            )
        except RevelatorError as error:
            if replace and not isinstance(error, InvalidRequest):
                error.detail = f"{error.detail}; {START_AGAIN}"
            raise


@asynccontextmanager
async def _new_collection(stores: EmbeddedStores, name: str) -> AsyncIterator[None]:
    """Create the collection if necessary, and delete it again if nothing was written.

    Raises ConfigurationError, before that, if the embedding model cannot run here.
    """
    if problem := stores.embedder.problem():
        raise ConfigurationError(problem)
    is_new = name not in await stores.collections.names()
    await stores.collections.create(name)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            manifest = await stores.collections.manifest(name)
            if is_new and manifest.state == "complete" and not manifest.documents:
                await stores.collections.delete(name)


async def _on_ray(
    address: str,
    files: Sequence[Path],
    collection: str,
    settings: Settings,
    listener: Listener,
    format: str | None,
) -> IngestResult:
    on_ray = _ray_ingest()
    async with open_embedded(settings) as stores, _new_collection(stores, collection):
        return await on_ray(
            address, files, collection, stores.collections, settings.retrieval, listener, format
        )


def _ray_ingest() -> Callable[..., Awaitable[IngestResult]]:
    """Import the ingest on Ray. Raises ConfigurationError if Ray is not installed."""
    try:
        from service.retrieval.ingest.ray_pipeline import ingest_on_ray  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(lacking("--ray", error, "ray")) from error
    return ingest_on_ray


class _Rate(ProgressColumn):
    """Renders the number of documents and their rate."""

    def render(self, task: BarTask) -> Text:
        elapsed = task.finished_time if task.finished else task.elapsed
        documents = task.fields["documents"]
        rate = f", {rate_text(documents / elapsed)}" if documents and elapsed else ""
        return Text(f"{documents:,} documents{rate}")


@contextmanager
def _progress_listener(console: Console) -> Iterator[Listener]:
    """Show a progress bar with rate and time left if the console is a terminal; invalid lines are
    printed above it.
    """
    columns = (
        BarColumn(),
        TaskProgressColumn(),
        _Rate(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("ingest", total=None, documents=0)
        shown = _Shown()
        logged_at = time.monotonic()

        def progress(now: Progress) -> None:
            bar.update(
                task, completed=now.done_bytes, total=now.total_bytes, documents=now.documents
            )
            nonlocal logged_at
            if not console.is_terminal and time.monotonic() - logged_at > LOGGED_S:
                logged_at = time.monotonic()
                console.print(_progress_line(now), highlight=False)

        def problem(found: SourceProblem) -> None:
            shown.count += 1
            if shown.count <= MOST_SHOWN:
                line = f"[red]invalid[/] {escape(str(found))}"
                bar.console.print(line, highlight=False, soft_wrap=True)
            elif shown.count == MOST_SHOWN + 1:
                bar.console.print("further invalid lines are only counted")

        yield Listener(progress, problem)


def _progress_line(now: Progress) -> str:
    share = f", {now.done_bytes / now.total_bytes:.1%} of the bytes" if now.total_bytes else ""
    return f"{now.documents:,} documents{share}"


@dataclass(slots=True)
class _Shown:
    count: int = 0


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


# `revelator collections` and `revelator check --collection`, in this process or through the server
# that owns the data.

TIMEOUT_S: Final = 330.0  # a deletion waits for the questions that run on the collection
# seconds for one request; a repair that is cut off can be run again
CHECK_TIMEOUT_S: Final = 3_600.0
REPORT: Final = TypeAdapter(CheckReport)

Description = Mapping[str, Any]  # of a collection, as HTTP shows it


class _Access(Protocol):
    async def list(self) -> Sequence[Description]: ...

    async def show(self, name: str) -> Description: ...

    async def delete(self, name: str) -> None: ...

    async def check(self, name: str, *, repair: bool, follow: Follow) -> CheckReport: ...


class _Direct:
    def __init__(self, collections: Collections) -> None:
        self._collections = collections

    async def list(self) -> Sequence[Description]:
        return [describe(each) for each in await self._collections.manifests()]

    async def show(self, name: str) -> Description:
        return describe(await self._collections.manifest(name))

    async def delete(self, name: str) -> None:
        await self._collections.delete(name)

    async def check(self, name: str, *, repair: bool, follow: Follow) -> CheckReport:
        return await self._collections.check(name, repair=repair, follow=follow)


class _ByServer:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._base = f"{url.rstrip('/')}/collections"

    async def list(self) -> Sequence[Description]:
        found: Sequence[Description] = (await send(self._session, "GET", self._base))["collections"]
        return found

    async def show(self, name: str) -> Description:
        found: Description = await send(self._session, "GET", f"{self._base}/{name}")
        return found

    async def delete(self, name: str) -> None:
        await send(self._session, "DELETE", f"{self._base}/{name}")

    async def check(self, name: str, *, repair: bool, follow: Follow) -> CheckReport:
        method, work = ("POST", "repair") if repair else ("GET", "check")
        url = f"{self._base}/{name}/{work}"
        report = await send_followed(self._session, method, url, follow)
        return REPORT.validate_python(report)


async def list_collections(settings: Settings, *, url: str | None = None) -> None:
    """Print the collections as a table. Raises RevelatorError."""
    async with _access(settings, url) as access:
        found = await access.list()
    table = Table("collection", "documents", "passages", "state", "embedding", box=None)
    for each in found:
        table.add_row(
            each["name"],
            f"{each['documents']:,}",
            f"{each['passages']:,}",
            each["state"],
            each["embedding_model"],
        )
    Console().print(table)


async def show_collection(settings: Settings, name: str, *, url: str | None = None) -> None:
    """Print a collection's fields, one per line. Raises RevelatorError."""
    check_name(name)
    async with _access(settings, url) as access:
        found = await access.show(name)
    console = Console()
    for field, value in found.items():
        text = printable(", ".join(value) if isinstance(value, list | tuple) else str(value))
        console.print(f"{field}: {text}", highlight=False, markup=False, soft_wrap=True)


async def delete_collection(settings: Settings, name: str, *, url: str | None = None) -> None:
    """Delete a collection and all its documents. Raises RevelatorError."""
    check_name(name)
    async with _access(settings, url) as access:
        await access.delete(name)
    Console().print(f"Collection {name} was deleted.", highlight=False, markup=False)


async def check_collection(settings: Settings, name: str, *, repair: bool) -> int:
    """Check or repair a collection and print the report. Returns the exit code: 0 if everything
    agrees, 1 if differences are left.

    Raises RevelatorError for problems that stop the command.
    """
    check_name(name)
    console = Console()
    async with _access(settings, None, CHECK_TIMEOUT_S, console) as access:
        with shown_stages("passages", console) as follow:
            report = await access.check(name, repair=repair, follow=follow)
    for line in lines_of(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 1 if (report.left if report.done else report.findings) else 0


def lines_of(report: CheckReport) -> list[str]:
    """Return the lines of text for a report."""
    counts = (
        f"collection {report.collection}: {report.documents:,} documents, "
        f"{report.passages:,} passages, {report.vectors:,} vectors"
    )
    if not report.findings:
        return [counts, "manifest and stores agree"]
    lines = [counts, *_finding_lines("found", report.findings)]
    lines += [f"done: {each}" for each in report.done]
    return lines + _finding_lines("left", report.left)


def _finding_lines(word: str, findings: Sequence[StoreDifference]) -> list[str]:
    lines = []
    for finding in findings:
        more = ", …" if finding.count > len(finding.ids) else ""
        ids = f": {finding.count:,} ({', '.join(finding.ids)}{more})" if finding.ids else ""
        lines.append(f"{word}: {finding.detail}{ids}")
    return lines


@asynccontextmanager
async def _access(
    settings: Settings,
    url: str | None,
    timeout_s: float = TIMEOUT_S,
    console: Console | None = None,
) -> AsyncIterator[_Access]:
    """Use the server at `url`, else the server that owns the data directory, else this process. The
    server is named on `console`.
    """
    base = find_server(settings.data_dir, url)
    if not base:
        async with open_embedded(settings) as stores:
            yield _Direct(stores.collections)
        return
    if console:
        console.print(f"Using the server at {shown(base)}.")
    async with session_with(base, settings, timeout_s) as session:
        yield _ByServer(session, base)
