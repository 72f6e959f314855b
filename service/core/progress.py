"""How far long work is: a bar on a terminal, else a line from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

LOGGED_S: Final = 30.0  # between two lines where no terminal shows a bar

Tell = Callable[..., None]  # (done, more=""): how much is done, and what else is to be said


def rate_and_left(done: int, total: int, seconds: float, begun: int = 0) -> str:
    """Return the rate and the time left, or the whole time at the end. `seconds` are those of
    `done` without the first `begun`, which an earlier run did. Empty while nothing is known."""
    if done <= begun or seconds <= 0:
        return ""
    rate = (done - begun) / seconds
    told = f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min"
    if done >= total:
        return f"{told}, in {timedelta(seconds=round(seconds))}"
    return f"{told}, {timedelta(seconds=round((total - done) / rate))} left"


def progress_text(
    done: int, total: int, noun: str, seconds: float, *, begun: int = 0, more: str = ""
) -> str:
    """Return the counts, the rate and the time left, and what else is to be said."""
    counts = f"{done:,} of {total:,} {noun}"
    return ", ".join(filter(None, [counts, rate_and_left(done, total, seconds, begun), more]))


@contextmanager
def shown_progress(
    what: str, noun: str, total: int, screen: Console, *, begun: int = 0, lines: bool = True
) -> Iterator[Tell]:
    """Show the progress while the block runs, which tells how much is done. Without `lines`, only a
    terminal shows it, because the work prints lines of its own."""
    began = logged = time.monotonic()
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.fields[told]}"))
    first = progress_text(begun, total, noun, 0)
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:
        bar = bars.add_task("", total=total, completed=begun, told=first)

        def tell(done: int, more: str = "") -> None:
            nonlocal logged
            now = time.monotonic()
            told = progress_text(done, total, noun, now - began, begun=begun, more=more)
            bars.update(bar, completed=done, told=told)
            if lines and not screen.is_terminal and now - logged >= LOGGED_S:
                logged = now
                screen.print(told, highlight=False)

        yield tell
