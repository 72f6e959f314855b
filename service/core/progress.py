"""Progress of long work: a bar on a terminal, else a line from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

LOGGED_S: Final = 30.0  # seconds between two lines if no terminal shows a bar

ShowProgress = Callable[..., None]  # (done, more=""): the count, and additional text
Follow = Callable[..., None]  # (stage, done, total, more=""): the progress of a stage


def unseen(stage: str, done: int, total: int) -> None:
    """Ignore the progress."""


def progress_text(
    done: int, total: int | None, noun: str, seconds: float, *, begun: int = 0, more: str = ""
) -> str:
    """Return the counts, the rate and the time left, or the total time at the end, and additional
    text. `seconds` is the duration of `done` without the first `begun`, which an earlier run did.
    """
    parts = [f"{done:,} {noun}" if total is None else f"{done:,} of {total:,} {noun}"]
    if done > begun and seconds > 0:
        rate = (done - begun) / seconds
        parts.append(f"{rate:,.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min")
        if total is not None and done >= total:
            parts.append(f"in {timedelta(seconds=round(seconds))}")
        elif total is not None:
            parts.append(f"{timedelta(seconds=round((total - done) / rate))} left")
    return ", ".join([*parts, *filter(None, [more])])


@contextmanager
def shown_progress(
    what: str, noun: str, total: int | None, screen: Console, *, begun: int = 0
) -> Iterator[ShowProgress]:
    """Show the progress while the block runs, which reports its count."""
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
            if not screen.is_terminal and now - logged >= LOGGED_S:
                logged = now
                screen.print(told, highlight=False)

        yield tell


@contextmanager
def shown_stages(noun: str, screen: Console) -> Iterator[Follow]:
    """Show the progress of work in several stages, one bar after the other."""
    with ExitStack() as shown:
        current: dict[str, ShowProgress] = {}

        def follow(stage: str, done: int, total: int | None, more: str = "") -> None:
            if stage not in current:
                shown.close()
                current.clear()
                current[stage] = shown.enter_context(shown_progress(stage, noun, total, screen))
            current[stage](done, more)

        yield follow
