"""`revelator check --collection`, in this process or through the server that owns the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter
from rich.console import Console

from service.core.locks import find_owner
from service.core.settings import Settings
from service.retrieval.collections.manifest import check_name
from service.retrieval.collections.upkeep import Finding, Report
from service.retrieval.opened import open_embedded
from service.retrieval.remote import send, session_with

REPORT: Final = TypeAdapter(Report)
TIMEOUT_S: Final = 3_600.0  # of one request; a repair that was cut off is run again


async def run_check(settings: Settings, collection: str, *, repair: bool) -> int:
    """Check or repair and print. Returns the exit code: 0 if everything agrees, 1 if differences
    are left.

    Raises RevelatorError for problems that stop the command.
    """
    check_name(collection)
    owner = find_owner(settings.data_dir)
    console = Console()
    if owner and owner.url:
        console.print(f"through the server at {owner.url}")
        report = await _through(owner.url, collection, settings, repair=repair)
    else:
        async with open_embedded(settings) as stores:
            report = await stores.collections.check(collection, repair=repair)
    for line in lines_of(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 1 if (report.left if report.done else report.findings) else 0


async def _through(url: str, collection: str, settings: Settings, *, repair: bool) -> Report:
    method, work = ("POST", "repair") if repair else ("GET", "check")
    address = f"{url.rstrip('/')}/collections/{collection}/{work}"
    async with session_with(url, settings, TIMEOUT_S) as session:
        return REPORT.validate_python(await send(session, method, address))


def lines_of(report: Report) -> list[str]:
    """Return the lines of text for a report."""
    counts = (
        f"collection {report.collection}: {report.documents:,} documents, "
        f"{report.passages:,} passages, {report.vectors:,} vectors"
    )
    if not report.findings:
        return [counts, "manifest and stores agree"]
    lines = [counts, *_told("found", report.findings)]
    lines += [f"done: {each}" for each in report.done]
    return lines + _told("left", report.left)


def _told(word: str, findings: Sequence[Finding]) -> list[str]:
    lines = []
    for finding in findings:
        count = f"{finding.count:,} " if finding.count else ""
        ids = f": {', '.join(finding.ids)}" if finding.ids else ""
        more = ", …" if finding.count > len(finding.ids) else ""
        lines.append(f"{word}: {count}{finding.detail}{ids}{more}")
    return lines
