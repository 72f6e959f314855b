"""A small synthetic world of people, films and places, on which smoke runs are trained.

Its titles are random syllables that occur in no corpus, so training on it affects no real
measurement. The held-out rule splits them like any other titles.
"""

from __future__ import annotations

import random

from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.names import Names, random_date, syllable_name
from service.workshop.facts.patterns import all_facts
from service.workshop.facts.questions import Maker

NATIONS = ("American", "British", "French", "German", "Italian", "Japanese", "Polish", "Swedish")
JOBS = ("film director", "actor", "singer", "painter", "politician", "writer", "composer")
GENRES = ("drama", "comedy", "horror", "crime", "war", "science fiction")
SITES = ("village", "town", "river", "castle", "museum")


def made_up_passages(count: int, seed: int = 0) -> list[Paragraph]:
    """Return `count` passages from both sides of the split, about people, their films and their
    places of origin."""
    rng = random.Random(seed)
    people = [f"{syllable_name(rng)} {syllable_name(rng)}" for _ in range(max(8, count // 2))]
    towns = [syllable_name(rng) for _ in range(max(8, count // 6))]
    passages = []
    for number in range(count):
        if number < len(people):
            title, text = people[number], _person(people[number], people, towns, rng)
        elif number % 3:
            title = " ".join(syllable_name(rng) for _ in range(rng.randint(1, 3)))
            text = _film(title, people, rng)
        else:
            title = f"{syllable_name(rng)} {syllable_name(rng)}"
            text = _place(title, towns, rng)
        passages.append(Paragraph(f"made-up-{number}", title, text, "made-up"))
    return passages


def made_up_maker(count: int, seed: int, *, held_out: bool) -> Maker:
    """Return a maker of questions over one side of `count` synthetic passages, without exchanged
    names."""
    passages = [p for p in made_up_passages(count) if p.held_out is held_out]
    facts = all_facts(passages)
    return Maker(facts, Names(facts), random.Random(seed))


def _person(name: str, people: list[str], towns: list[str], rng: random.Random) -> str:
    relation = rng.choice(("was the son of", "married", "was the sister of"))
    return (
        f"{name} (born {random_date('1 May 1900', rng)} in {rng.choice(towns)}) was a "
        f"{rng.choice(NATIONS)} {rng.choice(JOBS)}. {name.split(maxsplit=1)[0]} {relation} "
        f"{_other(name, people, rng)}, and died on {random_date('1 May 1900', rng)}."
    )


def _film(title: str, people: list[str], rng: random.Random) -> str:
    director = rng.choice(people)
    return (
        f"{title} is a {rng.randint(1920, 2015)} {rng.choice(NATIONS)} {rng.choice(GENRES)} film "
        f"directed by {director} and starring {_other(director, people, rng)}."
    )


def _place(title: str, towns: list[str], rng: random.Random) -> str:
    people = f"{rng.randint(1, 99)},{rng.randint(100, 999)}"
    return (
        f"{title} is a {rng.choice(SITES)} in {rng.choice(towns)}. It was founded in "
        f"{rng.randint(1100, 1990)}. Its population was {people}."
    )


def _other(name: str, people: list[str], rng: random.Random) -> str:
    return rng.choice([person for person in people if person != name])
