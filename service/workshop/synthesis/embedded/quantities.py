"""Numbers compared: two sub-questions with quantities as answers, and which is more or less."""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from service.prompts.templates import Pair
from service.workshop.facts.names import Names, syllable_name


class Quantity(NamedTuple):
    """A property asked for two things; `more` and `less` ask which has more of it, or less."""

    asked: str
    values: tuple[str, int, int]
    more: tuple[str, ...]
    less: tuple[str, ...]
    than: str


QUANTITIES: Final = (
    Quantity("What is the population of {s}?", ("{n:,}", 200, 900_000),
             ("Which has more inhabitants, {a} or {b}?", "Which is bigger, {a} or {b}?"),
             ("Which has fewer inhabitants, {a} or {b}?", "Which is the smaller town, {a} or {b}?"),
             "Does {a} have more inhabitants than {b}?"),
    Quantity("How tall is {s}?", ("{n} metres", 20, 900),
             ("Which is taller, {a} or {b}?", "Which is higher, {a} or {b}?"),
             ("Which is lower, {a} or {b}?",), "Is {a} taller than {b}?"),
    Quantity("How long is {s}?", ("{n} km", 3, 2_400),
             ("Which is longer, {a} or {b}?", "Which river is longer, {a} or {b}?"),
             ("Which is shorter, {a} or {b}?",), "Is {a} longer than {b}?"),
    Quantity("How much does {s} cost?", ("${n}", 2, 4_000),
             ("Which costs more, {a} or {b}?", "Which is more expensive, {a} or {b}?"),
             ("Which is cheaper, {a} or {b}?", "What costs less, {a} or {b}?"),
             "Is {a} more expensive than {b}?"),
    Quantity("How many members does {s} have?", ("{n:,}", 8, 70_000),
             ("Which has more members, {a} or {b}?",), ("Which has fewer members, {a} or {b}?",),
             "Does {a} have more members than {b}?"),
    Quantity("When was {s} founded?", ("{n}", 1200, 2020),
             ("Which was founded later, {a} or {b}?", "Which is younger, {a} or {b}?"),
             ("Which was founded first, {a} or {b}?", "Which is older, {a} or {b}?"),
             "Was {a} founded after {b}?"),
)  # fmt: skip


def compared_quantities(names: Names, rng: random.Random) -> tuple[str, tuple[Pair, ...], str]:
    """A question, its two pairs, and its answer: one of the names, or yes or no."""
    kind = rng.choice(QUANTITIES)
    shape, low, high = kind.values
    first, second = rng.sample(range(low, high), 2)
    a, b = (syllable_name(rng) if rng.random() < 0.6 else names.title(rng) for _ in range(2))
    pairs = tuple(
        Pair(kind.asked.format(s=name), shape.format(n=value))
        for name, value in ((a, first), (b, second))
    )
    draw = rng.random()
    if draw < 0.2:
        return kind.than.format(a=a, b=b), pairs, "yes" if first > second else "no"
    more = draw < 0.6
    question = rng.choice(kind.more if more else kind.less).format(a=a, b=b)
    return question, pairs, a if (first > second) is more else b
