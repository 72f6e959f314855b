"""Comparisons of two things by their dates or numbers, with the answers of both sub-questions.

Kind, question and correct reply are drawn from a shuffled deck in which every combination occurs
once, so that neither the order of the things nor a word of the question reveals the answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from service.prompts.templates import Pair
from service.workshop.facts.names import MONTHS, Names, syllable_name
from service.workshop.facts.questions import Maker
from service.workshop.facts.wordings import TEXTS

Asks = Literal["first", "last", "after", "same", "more", "less", "than"]
CHOICES: Final = frozenset({"first", "last", "more", "less"})  # the others are yes/no questions
SMALLER: Final = frozenset({"first", "less"})
DIRECTED: Final = "directed"
SWAPPED: Final = 0.25  # share of pairs listed in another order than in the question
SAME_YEAR: Final = 0.2  # share of dates that differ only in month or day
SAME_MONTH: Final = 0.25  # share of those dates that also have the same month
UNTOLD: Final = 0.25  # share of the other dates that consist of a year only
CLOSE: Final = 0.35  # share of numbers that differ by less than a tenth
TWICE: Final = 2  # how often a choice occurs for each yes/no question
FILMS: Final = 4  # number of cards of each kind that compares films by their directors


class Date(NamedTuple):
    """A date for comparison. Years BC are negative, and 0 means unknown."""

    year: int
    month: int = 0
    day: int = 0

    def written(self, rng: random.Random) -> str:
        """Return ``1964``, ``May 1964``, ``3 May 1964`` or ``May 3, 1964``."""
        year = f"{-self.year} BC" if self.year < 0 else str(self.year)
        if not self.month:
            return year
        month = MONTHS[self.month - 1]
        if not self.day:
            return f"{month} {year}"
        return rng.choice((f"{self.day} {month} {year}", f"{month} {self.day}, {year}"))


class Card(NamedTuple):
    """One combination of a deck.

    `right` is the index, in the order of the question, of the correct thing; for a yes/no question,
    0 stands for yes.
    """

    kind: str
    asks: Asks
    right: int


class Compared(NamedTuple):
    """A comparison. `pairs` are the sub-questions with their answers, from which `answer`
    follows."""

    card: Card
    question: str
    pairs: tuple[Pair, ...]
    answer: str


KINDS: Final[dict[str, dict[str, Any]]] = {
    row["kind"]: row for name in ("moments", "quantities") for row in TEXTS[name]
}


def deck() -> list[Card]:
    """Return every kind with each of its questions and both correct replies. Choices occur twice as
    often as yes/no questions."""
    cards = [Card(DIRECTED, asks, right) for asks in ("first", "last") for right in (0, 1)]
    cards *= FILMS
    for kind, row in KINDS.items():
        asked: Sequence[Asks] = ("first", "last", "after", "same")
        if "units" in row:
            asked = ("more", "less", "than", "same")
        for asks in asked:
            times = TWICE if asks in CHOICES else 1
            cards += [Card(kind, asks, right) for right in (0, 1)] * times
    return cards


class Comparisons:
    """Draws comparisons of synthetic things, and comparisons of films by their directors from
    facts."""

    def __init__(self, maker: Maker, rng: random.Random) -> None:
        self.maker, self.names, self.rng = maker, maker.names, rng
        self._left: list[Card] = []

    def draw(self) -> Compared:
        if not self._left:
            known = {"director", "birth_date", "death_date"} <= self.maker.by_kind.keys()
            self._left = [card for card in deck() if known or card.kind != DIRECTED]
            self.rng.shuffle(self._left)
        card = self._left.pop()
        return self._directed(card) if card.kind == DIRECTED else self._compared(card)

    def _compared(self, card: Card) -> Compared:
        row = KINDS[card.kind]
        a, b = _two_names(row["of"], self.names, self.rng)
        texts = self._numbers(row, card) if "units" in row else self._dates(row, card)
        question = self.rng.choice(row[card.asks]).format(a=a, b=b)
        pairs = [
            Pair(row["asked"].format(s=name), text)
            for name, text in zip((a, b), texts, strict=True)
        ]
        if self.rng.random() < SWAPPED:
            pairs.reverse()
        options = (a, b) if card.asks in CHOICES else ("yes", "no")
        return Compared(card, question, tuple(pairs), options[card.right])

    def _directed(self, card: Card) -> Compared:
        while True:
            made = self.maker.directed()
            if made is None or (made.form == "directed first") is not (card.asks == "first"):
                continue
            films = [hop.fact.subject for hop in made.hops[:2]]
            if films[card.right] == made.answer and films[0] != films[1]:
                pairs = tuple(Pair(hop.question, hop.answer) for hop in made.hops)
                return Compared(card, made.question, pairs, made.answer)

    def _dates(self, row: dict[str, Any], card: Card) -> list[str]:
        early, late = _two_dates(row["from"], row["to"], self.rng)
        if card.asks == "same":
            year = early.year if card.right == 0 else late.year + (late.year == early.year)
            dates = [early, _told(year, self.rng)]
            self.rng.shuffle(dates)
        else:
            dates = _placed(early, late, card)
        return [date.written(self.rng) for date in dates]

    def _numbers(self, row: dict[str, Any], card: Card) -> list[str]:
        low, high = _two_numbers(row["from"], row["to"], self.rng)
        if card.asks == "same":
            numbers = [low, low if card.right == 0 else high]
            self.rng.shuffle(numbers)
        else:
            numbers = _placed(low, high, card)
        unit = self.rng.choice(row["units"])
        return [unit.format(n=number) for number in numbers]


def _placed(small: Any, large: Any, card: Card) -> list[Any]:
    """Return the things in the order of the question for which the card's reply is correct."""
    wanted = small if card.asks in SMALLER else large  # the first thing if right is 0
    return [wanted, large if wanted is small else small][:: 1 if card.right == 0 else -1]


def _two_names(sort: str, names: Names, rng: random.Random) -> tuple[str, str]:
    def one() -> str:
        if sort == "person":
            return names.person(rng)
        if sort == "work" or rng.random() < 0.3:
            return names.title(rng)
        return " ".join(syllable_name(rng) for _ in range(rng.choice((1, 1, 2))))

    first, second = one(), one()
    while first in second or second in first:
        second = one()
    return first, second


def _two_dates(low: int, high: int, rng: random.Random) -> tuple[Date, Date]:
    """Return an earlier and a later date. Their years differ, unless both dates include the
    month."""
    year = rng.randint(max(low, 1), high) if rng.random() < 0.2 else rng.randint(1850, high)
    if low < 0 and rng.random() < 0.08:
        year = rng.randint(low, -20)
    if rng.random() < SAME_YEAR:
        first, second = sorted(rng.sample(range(1, 13), 2))
        days = sorted(rng.sample(range(1, 29), 2))
        if rng.random() < SAME_MONTH:
            return Date(year, first, days[0]), Date(year, first, days[1])
        with_day = rng.random() < 0.7
        return Date(year, first, days[0] * with_day), Date(year, second, days[1] * with_day)
    gap = rng.choice((rng.randint(1, 3), rng.randint(4, 20), rng.randint(21, 150)))
    earlier = year - gap
    if earlier <= 0 < year:
        earlier = year - 1 if year > 1 else -gap
    return _told(earlier, rng), _told(year, rng)


def _told(year: int, rng: random.Random) -> Date:
    if rng.random() < (UNTOLD if year > 0 else 0.8):
        return Date(year)
    return Date(year, rng.randint(1, 12), rng.choice((0, 1, 1, 1)) * rng.randint(1, 28))


def _two_numbers(low: int, high: int, rng: random.Random) -> tuple[int, int]:
    """Return a smaller and a larger number. They are drawn log-uniformly or close together."""
    one = round(math.exp(rng.uniform(math.log(low), math.log(high))))
    other = round(math.exp(rng.uniform(math.log(low), math.log(high))))
    if rng.random() < CLOSE or one == other:
        other = one + rng.randint(1, max(1, one // 10))
    return min(one, other), max(one, other)
