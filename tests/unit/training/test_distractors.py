"""Passages beside the gold one: without the answer, and in names of the same sort."""

from __future__ import annotations

import random

import pytest

from service.training.corpora import Passage
from service.training.distractors import Distractors
from service.training.drafts import reading_of
from service.training.drills import drill, named_line, plain_line, two_dates
from service.training.facts import all_facts
from service.training.substitution import Names
from service.training.synthesis import Maker, year_of


@pytest.fixture
def maker(passages: list[Passage]) -> Maker:
    facts = all_facts(passages)
    return Maker(facts, Names(facts), random.Random(1))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_distractors_do_not_answer(maker: Maker, passages: list[Passage], share: float) -> None:
    distractors = Distractors(passages, maker, random.Random(2))
    for _ in range(40):
        reading = reading_of(maker.single(share).hops[0])
        others = distractors.beside(reading, 2)
        assert len({other.id for other in others} | {reading.passage.id}) == 3
        assert not any(reading.answer in other.text for other in others)


def test_real_passages_stand_beside_a_real_one(maker: Maker, passages: list[Passage]) -> None:
    distractors = Distractors(passages, maker, random.Random(2))
    real = {passage.text for passage in passages}
    for _ in range(30):
        reading = reading_of(maker.single(0.0).hops[0])
        assert all(other.text in real for other in distractors.beside(reading, 2))


def test_renamed_passages_stand_beside_a_renamed_one(maker: Maker, passages: list[Passage]) -> None:
    distractors = Distractors(passages, maker, random.Random(2))
    titles = {passage.title for passage in passages}
    others: list[Passage] = []
    for _ in range(30):
        reading = reading_of(maker.single(1.0).hops[0])
        if reading.passage.title not in titles:
            others += distractors.beside(reading, 2)
    assert sum(other.title in titles for other in others) < len(others) / 3


def test_dates_of_a_comparison_differ_in_their_years() -> None:
    rng = random.Random(0)
    for _ in range(200):
        a, b = two_dates(rng, year_only=rng.random() < 0.5)
        assert year_of(a)[0] != year_of(b)[0] > 0


def test_drills_name_the_winner(maker: Maker) -> None:
    rng = random.Random(0)
    for _ in range(100):
        asked, answer = plain_line(rng)
        a, rest = asked.split(" or ")
        b, word = rest.rstrip(":").rsplit(", ", 1)
        first = min((a, b), key=year_of)
        assert (answer == first) is (word in {"first", "earlier"})
        asked, answer = named_line(maker.names, rng)
        assert answer in asked
    lines = drill(maker.names, rng)
    assert all(line.written is line.text.endswith("\n") for line in lines)
