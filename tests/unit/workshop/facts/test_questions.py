"""Synthesised questions: seeded, consistent with their passages, and on one side of the split."""

from __future__ import annotations

import random

import pytest

from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.names import Names, rename, substitute
from service.workshop.facts.patterns import all_facts
from service.workshop.facts.questions import Maker, year_of
from service.workshop.facts.wordings import SINGLE, UNSEEN, join_questions, vary_surface, wordings


def maker(passages: list[Paragraph], seed: int = 0, *, unseen: bool = False) -> Maker:
    facts = all_facts(passages)
    return Maker(facts, Names(facts), random.Random(seed), unseen=unseen)


def test_same_seed_same_questions(passages: list[Paragraph]) -> None:
    def draw() -> list[str]:
        made = maker(passages, 3)
        forms = (made.single, made.compound, made.bridge, made.comparison)
        return [form().question for form in forms for _ in range(5)]

    assert draw() == draw()


def test_every_kind_keeps_unseen_wordings() -> None:
    for kind, options in SINGLE.items():
        assert len(options) > UNSEEN, kind
        assert not set(wordings(options)) & set(wordings(options, unseen=True)), kind


def test_substituted_answers_stand_in_the_rewritten_passage(passages: list[Paragraph]) -> None:
    facts = all_facts(passages)
    names, rng = Names(facts), random.Random(1)
    for fact in facts * 5:
        changed = substitute(fact, names, rng)
        assert changed.answer in changed.passage.text
        assert changed.passage.title.startswith(changed.subject)


def test_rename_changes_whole_words_at_once() -> None:
    assert (
        rename("Ann met Anna and Bob", [("Ann", "Bob"), ("Bob", "Ann")]) == "Bob met Anna and Ann"
    )


@pytest.mark.parametrize(
    ("date", "value"),
    [("3 May 1890", (1890, 5, 3)), ("July 7, 1960", (1960, 7, 7)), ("1921", (1921, 0, 0)),
     ("soon", (0, 0, 0))],
)  # fmt: skip
def test_dates_compare(date: str, value: tuple[int, int, int]) -> None:
    assert year_of(date) == value


def test_comparison_gold_follows_the_dates(passages: list[Paragraph]) -> None:
    made = maker(passages)
    for _ in range(50):
        question = made.comparison(0.0)
        if question.form == "compare birth_date":
            older = min(question.hops, key=lambda hop: year_of(hop.answer))
            first = any(word in question.question for word in ("first", "older", "earlier"))
            assert (question.answer == older.fact.subject) is first


def test_bridges_share_the_entity(passages: list[Paragraph]) -> None:
    made = maker(passages)
    for _ in range(30):
        first, second = made.bridge().hops
        assert first.answer == second.fact.subject


def test_joined_questions_keep_every_part() -> None:
    rng = random.Random(0)
    for _ in range(30):
        joined = join_questions(["When was A born?", "Who directed B?", "Where is C?"], rng)
        assert joined.endswith("?")
        for part in ("hen was A born", "ho directed B", "here is C"):
            assert part in joined


def test_surface_keeps_the_words() -> None:
    rng = random.Random(0)
    forms = {vary_surface("Who is Ann?", rng) for _ in range(60)}
    assert forms == {"Who is Ann?", "Who is Ann", "who is ann?", "who is ann"}
