"""Wordings of synthesised questions by kind of fact, and variations of their spelling.

The texts are in `wordings.toml`. The last two wordings of every kind are reserved for tests.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple


class Comparison(NamedTuple):
    """Questions on which of `{a}` and `{b}` comes first, or last, by a kind of fact."""

    kind: str
    smaller: bool
    wordings: tuple[str, ...]


class Relation(NamedTuple):
    """A relation between things of two sorts. `phrases` are noun phrases around `{s}`."""

    of: str
    gives: str
    phrases: tuple[str, ...]


def read_toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _tuples(table: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {kind: tuple(texts) for kind, texts in table.items()}


def _comparisons(name: str) -> tuple[Comparison, ...]:
    rows = TEXTS[name]
    return tuple(Comparison(row["kind"], row["smaller"], tuple(row["wordings"])) for row in rows)


TEXTS: Final = read_toml(Path(__file__).with_suffix(".toml"))
SINGLE: Final = _tuples(TEXTS["single"])
PHRASES: Final = _tuples(TEXTS["phrases"])
SAME: Final = _tuples(TEXTS["same"])
COMPARISONS: Final = _comparisons("comparisons")
DIRECTED: Final = _comparisons("directed")
STATEMENTS: Final[dict[str, str]] = TEXTS["statements"]
EVIDENCE: Final[dict[str, str]] = TEXTS["evidence"]
RELATIONS: Final = tuple(
    Relation(row["of"], row["gives"], tuple(row["phrases"])) for row in TEXTS["relations"]
)
UNSEEN: Final = 2


def wordings(options: Sequence[str], *, unseen: bool = False) -> Sequence[str]:
    """Return the wordings for training, or those reserved for tests."""
    return options[-UNSEEN:] if unseen else options[:-UNSEEN]


def vary_surface(question: str, rng: random.Random) -> str:
    """Return the question as different people might type it: case and question mark vary."""
    draw = rng.random()
    if draw < 0.5:
        return question
    if draw < 0.65:
        return question.rstrip("?").strip()
    if draw < 0.8:
        return question.lower()
    return question.lower().rstrip("?").strip()


def join_questions(questions: Sequence[str], rng: random.Random) -> str:
    """Join several questions into one: ``When was A born, and who directed B?``."""
    heads = [question.rstrip("? ").strip() for question in questions]
    if rng.random() < 0.12:
        return " ".join(f"{head}?" for head in heads)
    tails = [_lower_first(head) for head in heads[1:]]
    joint = rng.choice((" and ", ", and ", " and also ", ", and also "))
    if len(tails) == 1:
        return f"{heads[0]}{joint}{tails[0]}?"
    return f"{', '.join([heads[0], *tails[:-1]])}{joint}{tails[-1]}?"


def _lower_first(text: str) -> str:
    first = text.split(maxsplit=1)[0] if text else ""
    known = {"who", "what", "when", "where", "which", "in", "on", "how", "at", "by", "for", "of",
             "from", "is", "are", "do", "does", "did", "was", "were", "whom", "whose"}  # fmt: skip
    return text[:1].lower() + text[1:] if first.lower() in known else text
