"""Where passages disagree, the newest edition counts, or the one that the question names."""

from __future__ import annotations

from typing import Any

import pytest

from service.core.domain import Passage
from service.encoders.answers import Candidate, in_order
from service.encoders.editions import resolve

OLD: dict[str, Any] = {"title": "Travel policy 2023", "metadata": {"date": "2023-01"}}
NEW: dict[str, Any] = {"title": "Travel policy (2025)", "metadata": {"valid_from": "2025-04-01"}}
QUESTION = "What is the allowance?"


def resolved(
    question: str, *shown: tuple[dict[str, Any], str, float, float]
) -> tuple[str, str | None, float]:
    """The answer, its rival and its lead; each passage has fields, its answer, place and margin."""
    passages = [
        Passage(str(n), text=answer, **given) for n, (given, answer, *_) in enumerate(shown)
    ]
    found = [
        Candidate(n, "span", ((0, len(answer)),), place, margin, 0.0)
        for n, (_, answer, place, margin) in enumerate(shown)
    ]
    best, rival = resolve(question, passages, in_order(found))
    told = passages[rival.passage].text if rival else None
    return passages[best.passage].text, told, best.lead


TITLED = {"title": "Other"}
RULES = "Daily allowance for Germany, Norway and France:"
MARCH = {"title": "Minutes of 11 March 2025", "metadata": {"date": "2025-03-11"}}
MAY = {"title": "Minutes of 13 May 2025", "metadata": {"date": "2025-05-13"}}
V1 = {"title": "Rules, version 1.4", "metadata": {"version": "1.4"}}
V2 = {"title": "Rules, version 1.10", "metadata": {"version": "1.10"}}


EDITIONS = ((OLD, "28 EUR", 9, 5), (NEW, "32 EUR", 8, 4))
RULED = ((V2, "14", 9, 5), (V1, "10", 8, 4))
MET = ((MARCH, "A", 9, 5), (MAY, "B", 5, 4))
AT_HEADINGS = (OLD | {"title": "Travel policy 2023 › Allowances"}, f"{RULES} 28 EUR.", 9, 5)
TRAINS = "Another text about trains and planes, 32 EUR."
A, B = {"title": "A"}, {"title": "B"}


@pytest.mark.parametrize(
    ("question", "shown", "expected"),
    [
        # the newest edition, with the lead over what is no edition of it
        (QUESTION, EDITIONS, ("32 EUR", None, 0.0)),
        (QUESTION, (*EDITIONS, (TITLED, "5", 3, 1)), ("32 EUR", None, 5.0)),
        (QUESTION, ((V1, "10", 9, 5), (V2, "14", 8, 4)), ("14", None, 0.0)),
        # the newer one does not answer
        (QUESTION, (EDITIONS[0], (NEW, "32 EUR", 2, -1)), ("28 EUR", None, 0.0)),
        # the question names the older one
        ("What was it in 2023?", EDITIONS, ("28 EUR", None, 0)),
        ("By version 1.4?", RULED, ("10", None, 0.0)),
        # the question names a day in words, and then not only its year
        ("Who met on 13 May 2025?", MET, ("B", None, -4)),
        ("Who met on May 13, 2025?", MET, ("B", None, -4)),
        ("Who met in May 2025?", MET, ("B", None, -4)),
        # one edition is cut at headings, the other at pages
        (QUESTION, (AT_HEADINGS, (NEW, f"{RULES} 32 EUR.", 8, 4)), (f"{RULES} 32 EUR.", None, 0)),
        (QUESTION, (AT_HEADINGS, (NEW, TRAINS, 8, 4)), (f"{RULES} 28 EUR.", TRAINS, 1)),
        # no edition settles it
        (QUESTION, ((A, "28 EUR", 9, 5), (B, "32 francs", 8.5, 4)), ("28 EUR", "32 francs", 0.5)),
        (QUESTION, ((A, "28 EUR", 9, 5), (B, "32 EUR", 9, 4)), ("28 EUR", "32 EUR", 0)),
        (QUESTION, ((A, "1,028 EUR", 9, 5), (B, "2,028", 9, 4)), ("1,028 EUR", "2,028", 0)),
        (QUESTION, ((A, "28 days", 9, 5), (B, "28 whole days", 9, 4)), ("28 days", None, 0)),
        (QUESTION, ((A, "ten days", 9, 5), (B, "10 days", 9, 4)), ("ten days", None, 0)),
        (QUESTION, ((A, "28 EUR", 9, 5), (B, "32", 7, 4)), ("28 EUR", None, 2)),
        (QUESTION, ((A, "28", 9, 5), (B, "28 EUR", 9, 5)), ("28", None, 0)),
        (QUESTION, ((A, "28", 9, 1), (B, "32", 9, 1)), ("28", None, 0)),
        (QUESTION, ((OLD, "28 EUR", 9, 5),), ("28 EUR", None, 0.0)),
    ],
)
def test_which_answer_counts(question: str, shown: Any, expected: Any) -> None:
    assert resolved(question, *shown) == expected
