"""The rate and the time left of long work, on a terminal and elsewhere."""

from __future__ import annotations

import io
from functools import partial

import pytest
from rich.console import Console

from service.core import progress
from service.core.progress import progress_text, shown_progress, shown_stages


@pytest.mark.parametrize(
    ("counts", "more", "text"),
    [
        ((0, 10, 0.0), "", "0 of 10 questions"),
        ((5, 20, 2.0), "", "5 of 20 questions, 2.5/s, 0:00:06 left"),
        ((1, 61, 60.0), "1 failed", "1 of 61 questions, 1.0/min, 1:00:00 left, 1 failed"),
        ((1_000, 1_000, 100.0), "", "1,000 of 1,000 questions, 10.0/s, in 0:01:40"),
    ],
)
def test_counts_rate_and_time_left(counts: tuple[int, int, float], more: str, text: str) -> None:
    done, total, seconds = counts
    assert progress_text(done, total, "questions", seconds, more=more) == text


def test_what_an_earlier_run_did_is_not_in_the_rate() -> None:
    told = partial(progress_text, total=100, noun="rows", seconds=5.0, begun=90)
    assert told(90) == "90 of 100 rows"
    assert told(95) == "95 of 100 rows, 1.0/s, 0:00:05 left"


def test_where_no_terminal_shows_a_bar_a_line_tells_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    screen = Console(file=io.StringIO(), width=100)
    with shown_progress("asking", "questions", 10, screen) as tell:
        for done, second in enumerate((1, 20, 31, 45, 62), 1):
            now[0] = float(second)
            tell(done, "1 failed" if done > 1 else "")
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue().splitlines() == [
        "3 of 10 questions, 5.8/min, 0:01:12 left, 1 failed",
        "5 of 10 questions, 4.8/min, 0:01:02 left, 1 failed",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_work_in_stages_shows_a_bar_for_each_on_a_terminal_only(terminal: bool) -> None:
    screen = Console(file=io.StringIO(), width=120, force_terminal=terminal)
    with shown_stages("passages", screen) as follow:
        for stage in ("comparing", "repairing", "comparing"):
            for done in (0, 1_000, 2_000):
                follow(stage, done, 2_000)
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert shown.count("2,000 of 2,000 passages") == (3 if terminal else 0)
    assert ("repairing" in shown) is terminal
    assert terminal or not shown
