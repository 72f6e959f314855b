"""`revelator ingest`: files into a collection, in this process or through a running server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
from rich.text import Text

from service.locking import find_owner
from service.retrieval.embedded import open_embedded
from service.retrieval.ingest import IngestReport, Listener, Progress, ingest
from service.retrieval.ingest_remote import ingest_through
from service.retrieval.manifest import check_name
from service.retrieval.sources import Problem
from service.settings import Settings

MOST_SHOWN = 100  # bad lines printed as they come; the totals count all


async def run_ingest(
    files: Sequence[Path], collection: str, settings: Settings, *, url: str | None = None
) -> int:
    """Ingest and print; the exit code: 0, or 1 when anything failed.

    Goes through `url`, else through the server that owns the data directory, else works here.
    Raises RevelatorError for what stops everything.
    """
    check_name(collection)
    owner = find_owner(settings.data_dir) if url is None else None
    base = url or (owner.url if owner else None)
    console = Console()
    with _listening(console) as listener:
        if base:
            console.print(f"through the server at {base}")
            report = await ingest_through(base, files, collection, settings, listener)
        else:
            report = await _here(files, collection, settings, listener)
    _print_totals(console, report, collection, embedded=not base)
    return 1 if report.failed else 0


async def _here(
    files: Sequence[Path], collection: str, settings: Settings, listener: Listener
) -> IngestReport:
    async with open_embedded(settings) as stores:
        await stores.collections.create(collection)
        return await ingest(files, collection, stores.collections, listener)


class _Rate(ProgressColumn):
    """Documents a second."""

    def render(self, task: BarTask) -> Text:
        elapsed = task.finished_time if task.finished else task.elapsed
        documents = task.fields["documents"]
        return Text(f"{documents:,} documents, {documents / elapsed if elapsed else 0:.0f}/s")


@contextmanager
def _listening(console: Console) -> Iterator[Listener]:
    """A progress bar with rate and time left; bad lines are printed above it as they come."""
    columns = (
        BarColumn(),
        TaskProgressColumn(),
        _Rate(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("ingest", total=None, documents=0)
        shown = _Shown()

        def progress(now: Progress) -> None:
            bar.update(
                task, completed=now.done_bytes, total=now.total_bytes, documents=now.documents
            )

        def problem(found: Problem) -> None:
            shown.count += 1
            if shown.count <= MOST_SHOWN:
                line = f"[red]bad[/] {escape(str(found))}"
                bar.console.print(line, highlight=False, soft_wrap=True)
            elif shown.count == MOST_SHOWN + 1:
                bar.console.print("further bad lines are only counted")

        yield Listener(progress, problem)


@dataclass(slots=True)
class _Shown:
    count: int = 0


def _print_totals(
    console: Console, report: IngestReport, collection: str, *, embedded: bool
) -> None:
    """A server does not say how many passages it embedded."""
    console.print(
        f"collection {collection}: {report.indexed:,} documents indexed, "
        f"{report.unchanged:,} unchanged, {report.failed:,} failed"
        + (f"; {report.embedded:,} passages embedded" if embedded else ""),
        highlight=False,
        soft_wrap=True,
    )
