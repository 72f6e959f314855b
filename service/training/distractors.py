"""Passages beside the one that answers, drawn so that only the asked name tells them apart.

Where the gold passage carries made-up names, so do all the others; where it is as people wrote
it, so are they. Otherwise the look of a name, not the question, would give the answer away.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from service.training.corpora import Passage
from service.training.facts import Fact
from service.training.nearest import Nearest
from service.training.substitution import PERSON_KINDS, Names, alike, rename, substitute
from service.training.synthesis import Maker

CLOSE = 12
# Share of made-up names that share a word with the asked one.
ALIKE = 0.2


class Reading(NamedTuple):
    """A question with the passage that answers it; `kind` is empty where no pattern found it."""

    question: str
    answer: str
    passage: Passage
    kind: str
    subject: str


class Distractors:
    """Draws passages that do not answer: close by BM25, of the same relation, naming the asked."""

    def __init__(self, passages: Sequence[Passage], maker: Maker, rng: random.Random) -> None:
        self.maker, self.rng = maker, rng
        self.names: Names = maker.names
        self.nearest = Nearest(passages)
        self.texts = {passage.id: passage.text for passage in passages}
        self.facts: dict[str, list[Fact]] = {}
        for facts in maker.by_kind.values():
            for fact in facts:
                self.facts.setdefault(fact.passage.id, []).append(fact)

    def beside(self, reading: Reading, size: int, taken: Sequence[Passage] = ()) -> list[Passage]:
        """`size` passages without the answer, none of them gold or in `taken`."""
        close = self.nearest.search(f"{reading.question} {reading.passage.text[:80]}", CLOSE)
        renamed = self.texts.get(reading.passage.id) != reading.passage.text
        known = {p.id for p in (reading.passage, *taken)}
        titles = {p.title for p in (reading.passage, *taken)}
        others: list[Passage] = []
        while len(others) < size:
            other = self._one(reading, close, renamed=renamed)
            if other.id in known or other.title in titles or reading.answer in other.text:
                continue
            others.append(other)
            known.add(other.id)
            titles.add(other.title)
        return others

    def _one(self, reading: Reading, close: list[Passage], *, renamed: bool) -> Passage:
        draw = self.rng.random()
        if draw < 0.5 and close:
            other = close.pop(self.rng.randrange(len(close)))
            return self._disguised(other, reading.subject) if renamed else other
        if draw < 0.65 and renamed and " " in reading.subject:
            kind = self.rng.choice(sorted(PERSON_KINDS & self.maker.by_kind.keys()))
            fact = self.maker.fact(kind)  # about somebody else, but it names the asked one
            return substitute(fact, self.names, self.rng, answer=reading.subject).passage
        fact = self.maker.fact(reading.kind if draw < 0.9 else "")
        return self._renamed(fact, reading.subject).passage if renamed else fact.passage

    def _disguised(self, passage: Passage, subject: str) -> Passage:
        facts = self.facts.get(passage.id)
        if facts:
            return self._renamed(self.rng.choice(facts), subject).passage
        return retitled(passage, self.names.title(self.rng))

    def _renamed(self, fact: Fact, subject: str) -> Fact:
        """The fact of a made-up bearer, whose name often shares a word with `subject`."""
        name = alike(subject, self.names, self.rng) if self.rng.random() < ALIKE else ""
        return substitute(fact, self.names, self.rng, subject=name)


def retitled(passage: Passage, title: str) -> Passage:
    """The passage under another title, in its text too."""
    text = rename(passage.text, [(passage.title, title)])
    return Passage(passage.id, title, text, passage.source)
