"""Facts are verbatim pieces of their passage, found by patterns."""

from __future__ import annotations

import pytest

from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.patterns import all_facts, subject_of

EXPECTED = {
    ("Harbour Lights", "director", "Ada Verney"),
    ("Harbour Lights", "film_year", "1931"),
    ("Harbour Lights", "film_country", "British"),
    ("Harbour Lights", "genre", "drama"),
    ("Harbour Lights", "starring", "Colin Marsh"),
    ("Ada Verney", "birth_date", "3 May 1890"),
    ("Ada Verney", "birth_place", "Leeds, England"),
    ("Ada Verney", "nationality", "British"),
    ("Ada Verney", "occupation", "film director"),
    ("Otto Brandt", "birth_date", "12 June 1902"),
    ("Otto Brandt", "birth_place", "Vienna"),
    ("Otto Brandt", "death_date", "4 March 1971"),
    ("Otto Brandt", "death_place", "Berlin"),
    ("Otto Brandt", "father", "Karl Brandt"),
    ("Otto Brandt", "mother", "Marie Holm"),
    ("Otto Brandt", "spouse", "Lena Koch"),
    ("Milton Cross", "location", "Essex, England"),
    ("Milton Cross", "population", "1,204"),
    ("Green Valley Press", "founded", "1921"),
    ("Green Valley Press", "headquarters", "Bristol"),
    ("Silver Moon", "performer", "Nell Ward"),
    ("Nell Ward", "school", "Yale"),
}


def test_expected_facts(passages: list[Paragraph]) -> None:
    found = {(fact.subject, fact.kind, fact.answer) for fact in all_facts(passages)}
    assert found >= EXPECTED


def test_answers_are_verbatim(passages: list[Paragraph]) -> None:
    assert all(fact.answer in fact.passage.text for fact in all_facts(passages))


@pytest.mark.parametrize(
    ("title", "subject"),
    [("Heat (1995 film)", "Heat"), ("Heat", "Heat"), ("(What's So Funny)", "(What's So Funny)")],
)
def test_subject_drops_the_bracket(title: str, subject: str) -> None:
    assert subject_of(title) == subject
