"""What is held out is decided by one hash, for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.workshop.facts.rows import read_lines
from service.workshop.facts.splits import Split, canonical_form, is_held_out, side_of


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Who  wrote “Heat”?", "who wrote heat"),
        ("Straße (film)", "strasse film"),
        ("ＦＵＬＬ width", "full width"),
        ("snake_case it's", "snake_case it s"),
        ("  ", ""),
    ],
)
def test_normal_form(text: str, normal: str) -> None:
    assert canonical_form(text) == normal


def test_surface_does_not_move_a_text_across_the_split() -> None:
    for number in range(200):
        text = f"Title number {number}"
        assert is_held_out(text) == is_held_out(f"  title NUMBER   {number}?! ")


def test_about_a_fifth_is_held_out() -> None:
    held = sum(is_held_out(f"text {number}") for number in range(5000))
    assert 0.18 < held / 5000 < 0.23


KNOWN, HELD_OUT = "Canberra", "Paris"


@pytest.mark.parametrize(
    ("titles", "answers", "written", "side"),
    [
        ([KNOWN], [KNOWN], None, "train"),
        ([], [], None, "train"),
        ([KNOWN], [], "Canberra?", "train"),
        ([KNOWN, HELD_OUT], [HELD_OUT], None, "test"),  # what leads there may be of either side
        ([KNOWN, HELD_OUT], [KNOWN], None, None),
        ([KNOWN, HELD_OUT], [KNOWN, HELD_OUT], None, None),
        ([HELD_OUT], [], None, None),
        ([], [], "Paris?", "test"),
        ([KNOWN], [KNOWN], "paris", "test"),
    ],
)
def test_what_may_train_and_what_may_test(
    titles: list[str], answers: list[str], written: str | None, side: Split | None
) -> None:
    assert side_of(titles, answers, written) == side


def test_counts_of_the_design(shared_data: Path) -> None:
    wiki, squad = (
        [row["title"] for row in read_lines(shared_data / name / "corpus.jsonl")]
        for name in ("2wikimultihopqa", "squad")
    )
    articles = set(squad)
    assert sum(map(is_held_out, wiki)) == 1253
    assert sum(is_held_out(title) for title in articles) == 7
    assert len(articles) == 24
