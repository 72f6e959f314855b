"""Questions "How many …?" whose answer is another number of the passage."""

from __future__ import annotations

import pytest

from service.strategies.rules import corrected_count

HANDBOOK = (
    "Every employee has 27 days of paid leave a year. New employees have a trial period of four "
    "months. Orders above 3,000 kroner are approved by two managers in at most six working days."
)
LEAVE = "How many days of leave do I have?"


@pytest.mark.parametrize(
    ("question", "text", "answer", "right"),
    [
        (LEAVE, HANDBOOK.partition(" Orders")[0], "four", "27"),
        (LEAVE, HANDBOOK.partition(" Orders")[0], "four months", "27"),
        ("How many managers approve orders?", HANDBOOK, "3,000 kroner", "two"),
        ("How many people were buried?", "1,700 people of 7,000 residents", "7,000", "1,700"),
        ("How many viewers?", "Three billion viewers, four billion views", "four billion",
         "Three billion"),
        ("how many cities have signed?", "Of nine counties, 24 large cities.", "nine", "24"),
    ],
)  # fmt: skip
def test_another_number_is_corrected(question: str, text: str, answer: str, right: str) -> None:
    assert corrected_count(question, text, answer) == right


@pytest.mark.parametrize(
    ("question", "text", "answer"),
    [
        (LEAVE, HANDBOOK, "four"),  # 27 days and six working days
        (LEAVE, HANDBOOK, "27"),
        ("How many months is the trial period?", HANDBOOK, "four"),
        ("How long is the trial period?", HANDBOOK, "four months"),
        ("How many orders were there?", HANDBOOK, "3,000"),  # none are counted
        ("How many people were injured?", "18,498 people are missing, 374,176 injured", "374,176"),
        ("How many records were sold?", "118 million records, 60 million through a band",
         "60 million"),
        ("How many days is a lifetime?", HANDBOOK.partition(" Orders")[0], "no number"),
        ("How many seats has it?", "40 seats and 12 doors, but 12 are broken", "12"),
        ("How many of them came?", "One of them came by 2 ships", "2"),
        ("", "", ""),
    ],
)  # fmt: skip
def test_what_may_be_right_stays(question: str, text: str, answer: str) -> None:
    assert corrected_count(question, text, answer) == answer


def test_a_long_text_is_no_burden() -> None:
    text = "1,000 2,000 three hundred " * 40_000
    assert corrected_count("How many days?", f"{text} 4 months", "4") == "4"
