from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from service.evaluation import progress
from service.evaluation.progress import progress_text, shown_progress
from service.evaluation.rows import Row
from service.evaluation.sources import named_file


def row(error: str | None = None) -> Row:
    return Row("1", "Q?", ("x",), None, "x", True, {}, 0, 0, error=error)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((0, 10, 0, 0.0), "0 of 10 questions"),
        ((5, 20, 0, 2.0), "5 of 20 questions, 2.5/s, 0:00:06 left"),
        ((1, 61, 1, 60.0), "1 of 61 questions, 1.0/min, 1:00:00 left, 1 failed"),
        ((1_000, 1_000, 2, 100.0), "1,000 of 1,000 questions, 10.0/s, in 0:01:40, 2 failed"),
    ],
)
def test_counts_rate_and_time_left(counts: tuple[int, int, int, float], text: str) -> None:
    assert progress_text(*counts) == text


def test_where_no_terminal_shows_a_bar_a_line_tells_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    screen = Console(file=io.StringIO(), width=100)
    with shown_progress(10, screen) as ended:
        for second in (1, 20, 31, 45, 62):
            now[0] = float(second)
            ended(row("gone" if second == 20 else None))
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue().splitlines() == [
        "3 of 10 questions, 5.8/min, 0:01:12 left, 1 failed",
        "5 of 10 questions, 4.8/min, 0:01:02 left, 1 failed",
    ]


def test_a_terminal_shows_a_bar_with_rate_and_time_left() -> None:
    screen = Console(file=io.StringIO(), width=120, force_terminal=True)
    with shown_progress(2, screen) as ended:
        ended(row())
        ended(row("gone"))
    assert isinstance(screen.file, io.StringIO)
    assert "2 of 2 questions" in screen.file.getvalue()
    assert "1 failed" in screen.file.getvalue()


def test_names_of_datasets(tmp_path: Path) -> None:
    plain = tmp_path / "squad" / "questions.jsonl"
    plain.parent.mkdir()
    plain.touch()
    odd = tmp_path / "a=b.jsonl"
    odd.touch()
    assert named_file(str(plain)) == ("squad", plain)
    assert named_file(str(odd)) == ("a=b", odd)
    assert named_file(f"mine={plain}") == ("mine", plain)
    assert named_file("hotpot_dev_distractor_v1.json")[0] == "hotpot_dev_distractor_v1"
    assert named_file("hotpot_dev_v1.json.gz")[0] == "hotpot_dev_v1"
    assert named_file("nq/dev.jsonl.zst")[0] == "nq"
