"""How far an evaluation is: a bar on a terminal, else a line from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from service.evaluation.rows import Row

LOGGED_S: Final = 30.0  # between two lines where no terminal shows a bar


def progress_text(done: int, total: int, failed: int, seconds: float) -> str:
    """Return the counts, the rate and the time left, as `seconds` for what is done tell it."""
    parts = [f"{done:,} of {total:,} questions"]
    if done and seconds > 0:
        rate = done / seconds
        parts.append(f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min")
        left = timedelta(seconds=round((total - done) / rate))
        parts.append(f"{left} left" if done < total else f"in {timedelta(seconds=round(seconds))}")
    if failed:
        parts.append(f"{failed:,} failed")
    return ", ".join(parts)


@contextmanager
def shown_progress(total: int, screen: Console) -> Iterator[Callable[[Row], None]]:
    """Show the progress while the block runs, which passes each row as it ends."""
    began = logged = time.monotonic()
    done = failed = 0
    columns = (TextColumn("asking"), BarColumn(), TextColumn("{task.fields[told]}"))
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:
        bar = bars.add_task("", total=total, told=progress_text(0, total, 0, 0))

        def ended(row: Row) -> None:
            nonlocal done, failed, logged
            done, failed, now = done + 1, failed + bool(row.error), time.monotonic()
            told = progress_text(done, total, failed, now - began)
            bars.update(bar, completed=done, told=told)
            if not screen.is_terminal and now - logged >= LOGGED_S:
                logged = now
                screen.print(told, highlight=False)

        yield ended
