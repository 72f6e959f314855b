"""`revelator collections` and `revelator check --collection`, in this process or through the server
that owns the data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rich.console import Console
from rich.table import Table

from service.cli.upload import AGAIN
from service.client import PATIENCE_S, Client
from service.core.locks import find_server
from service.core.progress import shown_stages
from service.core.settings import Settings
from service.core.settings.urls import shown
from service.core.terminal import printable
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.manifest import (
    CollectionReport,
    Finding,
    check_name,
    describe,
    info_of,
)
from service.retrieval.factory import open_embedded


async def list_collections(settings: Settings, *, url: str | None = None) -> None:
    """Print the collections as a table. Raises RevelatorError."""
    async with _access(settings, url) as access:
        if isinstance(access, Client):
            found = await access.collections()
        else:
            found = [info_of(each) for each in await access.manifests()]
    table = Table("collection", "documents", "passages", "state", "embedding", box=None)
    for each in found:
        counts = f"{each.documents:,}", f"{each.passages:,}"
        table.add_row(each.name, *counts, each.state, each.embedding_model)
    Console().print(table)


async def show_collection(settings: Settings, name: str, *, url: str | None = None) -> None:
    """Print a collection's fields, one per line. Raises RevelatorError."""
    check_name(name)
    async with _access(settings, url) as access:
        if isinstance(access, Client):
            found = (await access.collection(name)).model_dump()
        else:
            found = describe(await access.manifest(name))
    console = Console()
    for field, value in found.items():
        text = printable(", ".join(value) if isinstance(value, list | tuple) else str(value))
        console.print(f"{field}: {text}", highlight=False, markup=False, soft_wrap=True)


async def delete_collection(settings: Settings, name: str, *, url: str | None = None) -> None:
    """Delete a collection and all its documents. Raises RevelatorError."""
    check_name(name)
    async with _access(settings, url) as access:
        if isinstance(access, Client):
            await access.delete_collection(name)
        else:
            await access.delete(name)
    Console().print(f"Collection {name} was deleted.", highlight=False, markup=False)


async def check_collection(settings: Settings, name: str, *, repair: bool) -> int:
    """Check or repair a collection and print the report. Returns the exit code: 0 if everything
    agrees, 1 if differences are left.

    Raises RevelatorError for problems that stop the command.
    """
    check_name(name)
    console = Console()
    async with _access(settings, None) as access:
        if isinstance(access, Client):
            console.print(f"Using the server at {shown(access.base)}.")
        with shown_stages("passages", console) as follow:
            if isinstance(access, Client):
                report = await (access.repair if repair else access.check)(name, follow)
            else:
                report = await access.check(name, repair=repair, follow=follow)
    for line in lines_of(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 1 if (report.left if report.done else report.findings) else 0


def lines_of(report: CollectionReport) -> list[str]:
    """Return the lines of text for a report."""
    counts = (
        f"collection {report.collection}: {report.documents:,} documents, "
        f"{report.passages:,} passages, {report.vectors:,} vectors"
    )
    first = [counts, *(["; ".join(report.settings)] if report.settings else [])]
    if not report.findings:
        return [*first, "manifest and stores agree"]
    lines = [*first, *_finding_lines("found", report.findings)]
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
async def _access(settings: Settings, url: str | None) -> AsyncIterator[Collections | Client]:
    """Yield a client of the server at `url`, else of the one that owns the data directory, else the
    collections of this process."""
    if base := find_server(settings.data_dir, url):
        async with Client(base, key=settings.own_key, again=AGAIN) as client:
            yield client
    else:
        async with open_embedded(settings, patience_s=PATIENCE_S) as stores:
            yield stores.collections
