"""Questions with routes, and chains of relations in the place of names."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.workshop.facts import routes
from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.patterns import all_facts
from service.workshop.facts.routes import (
    REAL,
    RELATIONS,
    Chains,
    RoutedQuestion,
    frames,
    routed_questions,
    weights,
)
from service.workshop.facts.splits import is_held_out


@pytest.fixture
def chains(passages: list[Paragraph]) -> Chains:
    asked = ["What is the population of Milton Cross?", "who was otto brandt married to"]
    return Chains(all_facts(passages), asked, random.Random(1))


def test_every_sort_of_thing_can_be_reached_by_a_relation() -> None:
    assert {relation.gives for relation in RELATIONS} == {"work", "person", "group", "place"}
    assert all(phrase.count("{s}") == 1 for each in RELATIONS for phrase in each.phrases)


def test_names_of_known_sorts_become_frames(chains: Chains) -> None:
    assert chains.frames == [
        ("What is the population of {s}?", "place"),
        ("who was {s} married to", "person"),
    ]


def test_words_that_are_titles_too_are_no_names() -> None:
    sorts = {"milton cross": "place", "cross": "place", "heat": "work"}
    assert frames(["Why is Milton Cross so {odd}?"], sorts) == []
    assert frames(["Where is Milton Cross?"], sorts) == [("Where is {s}?", "place")]


def test_chains_end_in_a_name_from_the_passages(chains: Chains) -> None:
    names = {name for own in chains.names.values() for name in own}
    for _ in range(50):
        question = chains.question()
        assert "{" not in question
        assert "the the " not in question
        assert any(name in question for name in names)


def test_a_phrase_nests_one_to_three_relations(chains: Chains) -> None:
    phrases = {chains.phrase("person") for _ in range(200)}
    assert any(phrase.count("Harbour Lights") == 1 for phrase in phrases)
    assert max(len(phrase.split()) for phrase in phrases) > 8


def test_rows_come_from_one_side_alone_and_the_seed_fixes_them(data: Path) -> None:
    rows = routed_questions(data, scale=0.01)
    assert rows == routed_questions(data, scale=0.01)
    assert rows != routed_questions(data, scale=0.01, seed=1)
    people = [row for row in rows if row.source in REAL]
    assert {row.source for row in people} == set(REAL)
    assert not any(is_held_out(row.question) for row in people)
    others = routed_questions(data, held_out=True, scale=0.0)
    assert all(is_held_out(row.question) for row in others)
    assert not {row.question for row in rows} & {row.question for row in others}


def test_rows_are_in_normal_form_and_once(data: Path) -> None:
    questions = [row.question for row in routed_questions(data, scale=0.01)]
    assert len(set(questions)) == len(questions)
    assert all(q == q.lower() and not q.endswith("?") for q in questions)


def test_what_is_made_of_a_set_is_drawn_from_it() -> None:
    row = RoutedQuestion("who is a and who is b", "compound", "squad joined", ("squad",))
    assert row.drawn_from(["squad", "musique"])
    assert not row.drawn_from(["musique"])


def test_routes_weigh_alike_and_sources_by_the_root_of_their_size() -> None:
    rows = [RoutedQuestion(str(n), "single", "nq_open") for n in range(9)]
    rows += [RoutedQuestion(str(n), "single", "squad") for n in range(4)]
    rows += [RoutedQuestion("x", "direct", "commonsenseqa")]
    given = weights(rows)
    assert sum(given) == pytest.approx(len(rows))
    assert given[-1] == pytest.approx(7)
    assert sum(given[:9]) / sum(given[9:13]) == pytest.approx(3 / 2)


def test_a_tenth_of_the_training_side_sets_the_temperature() -> None:
    rows = [RoutedQuestion(f"who is number {n}", "single", "x") for n in range(2000)]
    assert 0.08 < sum(row.validates for row in rows) / len(rows) < 0.13
    assert routes.VALIDATES_BELOW == 26
