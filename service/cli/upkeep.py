"""`revelator collections` and `revelator check --collection`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from service.cli.connect import open_client
from service.cli.ingest import AGAIN
from service.core.progress import shown_stages
from service.core.settings import Settings
from service.core.terminal import printable
from service.retrieval.collections.manifest import check_name
from service.retrieval.reports import CollectionReport, Finding


async def list_collections(settings: Settings, *, url: str | None = None) -> None:
    """Print the collections as a table, and those that cannot be read. Raises RevelatorError."""
    async with open_client(settings, url, AGAIN) as client:
        found = await client.collections()
    table = Table("collection", "documents", "passages", "state", "embedding", box=None)
    for collection in found.collections:
        counts = f"{collection.documents:,}", f"{collection.passages:,}"
        table.add_row(collection.name, *counts, collection.state, collection.embedding_model)
    console = Console()
    console.print(table)
    for name, problem in found.problems.items():
        console.print(
            f"{name}: {printable(problem)}", highlight=False, markup=False, soft_wrap=True
        )


async def show_collection(settings: Settings, name: str, *, url: str | None = None) -> None:
    """Print a collection's fields, one per line. Raises RevelatorError."""
    check_name(name)
    async with open_client(settings, url, AGAIN) as client:
        found = (await client.collection(name)).model_dump()
    console = Console()
    for field, value in found.items():
        text = printable(", ".join(value) if isinstance(value, list | tuple) else str(value))
        console.print(f"{field}: {text}", highlight=False, markup=False, soft_wrap=True)


async def delete_collection(settings: Settings, name: str, *, url: str | None = None) -> None:
    """Delete a collection and all its documents. Raises RevelatorError."""
    check_name(name)
    async with open_client(settings, url, AGAIN) as client:
        await client.delete_collection(name)
    Console().print(f"Collection {name} was deleted.", highlight=False, markup=False)


async def check_collection(settings: Settings, name: str, *, repair: bool) -> int:
    """Check or repair a collection and print the report. Returns the exit code: 0 if everything
    agrees, 1 if differences are left.

    Raises RevelatorError for problems that stop the command.
    """
    check_name(name)
    console = Console()
    async with open_client(settings, again=AGAIN) as client:
        with shown_stages("passages", console) as follow:
            report = await (client.repair if repair else client.check)(name, follow)
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
    lines += [f"done: {line}" for line in report.done]
    return lines + _finding_lines("left", report.left)


def _finding_lines(word: str, findings: Sequence[Finding]) -> list[str]:
    lines = []
    for finding in findings:
        more = ", …" if finding.count > len(finding.ids) else ""
        ids = f": {finding.count:,} ({', '.join(finding.ids)}{more})" if finding.ids else ""
        lines.append(f"{word}: {finding.detail}{ids}")
    return lines
