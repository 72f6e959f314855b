"""Comparisons by the dozen: which of two years, dates or numbers comes first, many in a row.

One comparison among the roles' prompts costs about a hundred ids; here it costs fifteen to fifty,
and each counts.
"""

from __future__ import annotations

import random

from service.training.comparisons import COMPARISONS
from service.training.questions import wordings
from service.training.substitution import Names, random_date
from service.training.synthesis import year_of
from service.training.tokenizer import Segment

FEWEST, MOST = 5, 14


def two_dates(rng: random.Random, *, year_only: bool) -> tuple[str, str]:
    """Two dates of different years, a third of them close to each other."""
    shape = "1900" if year_only else ""
    while True:
        likes = [shape or rng.choice(("1 May 1900", "May 1, 1900", "1900")) for _ in range(2)]
        first, second = (random_date(like, rng) for like in likes)
        if rng.random() < 0.35:
            year = year_of(first)[0] + rng.choice((-1, 1)) * rng.randint(1, 15)
            second = second.replace(str(year_of(second)[0]), str(year))
        if year_of(first)[0] != year_of(second)[0]:
            return first, second


def plain_line(rng: random.Random) -> tuple[str, str]:
    """(what is asked, the answer) of two bare years or dates."""
    a, b = two_dates(rng, year_only=rng.random() < 0.8)
    smaller = rng.random() < 0.5
    word = rng.choice(("first", "earlier")) if smaller else rng.choice(("later", "last"))
    return f"{a} or {b}, {word}:", a if (year_of(a) < year_of(b)) is smaller else b


def named_line(names: Names, rng: random.Random) -> tuple[str, str]:
    """(what is asked, the answer) of two names with their dates, in a question's own wording."""
    kind, smaller, options = rng.choice(COMPARISONS)
    one, other = names.subject(kind, rng), names.subject(kind, rng)
    a, b = two_dates(rng, year_only=rng.random() < 0.6)
    question = rng.choice(wordings(options)).format(a=one, b=other)
    lines = [f"{one}: {a}.", f"{other}: {b}."]
    if rng.random() < 0.3:
        lines.reverse()
    answer = one if (year_of(a) < year_of(b)) is smaller else other
    return f"{question} {' '.join(lines)} Answer:", answer


def drill(names: Names, rng: random.Random) -> list[Segment]:
    """One row of comparisons, a line each; only the answers are the model's to write."""
    plain = rng.random() < 0.6
    segments = []
    for _ in range(rng.randint(FEWEST, MOST) * (2 if plain else 1)):
        asked, answer = plain_line(rng) if plain else named_line(names, rng)
        segments += [Segment(asked, False), Segment(answer + "\n", True)]
    return segments
