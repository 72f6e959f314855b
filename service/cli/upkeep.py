"""`revelator collections` and `revelator check --collection`, in this process or through the server
that owns the data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from service.client import PATIENCE_S, send, send_followed, session_with
from service.core.locks import find_server
from service.core.progress import Follow, shown_stages
from service.core.settings import Settings
from service.core.settings.urls import shown
from service.core.terminal import printable
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.manifest import CollectionReport, Finding, check_name, describe
from service.retrieval.factory import open_embedded

if TYPE_CHECKING:
    pass

TIMEOUT_S: Final = 330.0  # a deletion waits for the questions that run on the collection
# seconds for one request; a repair that is cut off can be run again
CHECK_TIMEOUT_S: Final = 3_600.0

Description = Mapping[str, Any]  # of a collection, as HTTP shows it
Server = Callable[..., Awaitable[Any]]  # (method, path below /collections, follow)


async def list_collections(settings: Settings, *, url: str | None = None) -> None:
    """Print the collections as a table. Raises RevelatorError."""
    async with _access(settings, url) as access:
        if isinstance(access, Collections):
            found = [describe(each) for each in await access.manifests()]
        else:
            found = (await access("GET", ""))["collections"]
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
        found: Description
        if isinstance(access, Collections):
            found = describe(await access.manifest(name))
        else:
            found = await access("GET", f"/{name}")
    console = Console()
    for field, value in found.items():
        text = printable(", ".join(value) if isinstance(value, list | tuple) else str(value))
        console.print(f"{field}: {text}", highlight=False, markup=False, soft_wrap=True)


async def delete_collection(settings: Settings, name: str, *, url: str | None = None) -> None:
    """Delete a collection and all its documents. Raises RevelatorError."""
    check_name(name)
    async with _access(settings, url) as access:
        if isinstance(access, Collections):
            await access.delete(name)
        else:
            await access("DELETE", f"/{name}")
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
            if isinstance(access, Collections):
                report = await access.check(name, repair=repair, follow=follow)
            else:
                method, work = ("POST", "repair") if repair else ("GET", "check")
                told = await access(method, f"/{name}/{work}", follow)
                report = CollectionReport.model_validate(told)
    for line in lines_of(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 1 if (report.left if report.done else report.findings) else 0


def lines_of(report: CollectionReport) -> list[str]:
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


def _finding_lines(word: str, findings: Sequence[Finding]) -> list[str]:
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
) -> AsyncIterator[Collections | Server]:
    """Yield the function that asks the server at `url`, else the one that owns the data directory,
    else the collections of this process. The server is named on `console`.
    """
    base = find_server(settings.data_dir, url)
    if not base:
        async with open_embedded(settings, patience_s=PATIENCE_S) as stores:
            yield stores.collections
        return
    if console:
        console.print(f"Using the server at {shown(base)}.")
    async with session_with(base, settings, timeout_s) as session:

        async def ask(method: str, path: str, follow: Follow | None = None) -> Any:
            address = f"{base.rstrip('/')}/collections{path}"
            if follow is None:
                return await send(session, method, address)
            return await send_followed(session, method, address, follow)

        yield ask
