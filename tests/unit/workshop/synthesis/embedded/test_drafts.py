"""DRAGIN's drafts: a sentence for every kind of fact."""

from __future__ import annotations

import random

from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.patterns import COMPILED, all_facts
from service.workshop.facts.questions import hop_of
from service.workshop.facts.wordings import SINGLE
from service.workshop.synthesis.embedded.drafts import STATEMENTS, conclusion, statement


def test_every_kind_has_a_statement() -> None:
    assert STATEMENTS.keys() == SINGLE.keys() == COMPILED.keys()


def test_statement_names_the_asked_before_the_found(passages: list[Paragraph]) -> None:
    rng = random.Random(0)
    for fact in all_facts(passages):
        said = statement(hop_of(fact, rng))
        assert said.index(fact.subject) < said.rindex(fact.answer)
        assert said.endswith(".")


def test_years_are_in_and_dates_on(passages: list[Paragraph]) -> None:
    said = {statement(hop_of(fact, random.Random(0))) for fact in all_facts(passages)}
    assert "Green Valley Press was founded in 1921." in said
    assert "Ada Verney was born on 3 May 1890." in said


def test_conclusions_are_as_dragin_reads_them() -> None:
    assert conclusion(" Ada  Verney ") == "So the answer is Ada Verney."
