"""DRAGIN's drafts (METHODS.md §3.3): reasoning sentences that end in ``So the answer is X.``

Raw text without turns: demonstrations, an optional ``Context:`` block, the question, the answer.
The passage of a fact is withheld in about half of the rows. What is withheld cannot be known, the
names being made up or seen too seldom, so the model learns to be unsure there (its entropy rises)
and to be sure of what it can copy.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from service.loops.dragin.prompts import demonstrations_text
from service.prompting.quoting import quote
from service.training import roles
from service.training.distractors import Distractors, Reading
from service.training.facts import Fact
from service.training.questions import vary_surface
from service.training.synthesis import Hop, Maker, Synthesised
from service.training.tokenizer import Segment

# What a fact says as a sentence: the asked one first, what is to be found last.
STATEMENTS = {
    "birth_date": "{s} was born on {a}.", "death_date": "{s} died on {a}.",
    "birth_place": "{s} was born in {a}.", "death_place": "{s} died in {a}.",
    "nationality": "The nationality of {s} is {a}.", "occupation": "{s} worked as {a}.",
    "father": "The father of {s} is {a}.", "mother": "The mother of {s} is {a}.",
    "spouse": "The spouse of {s} is {a}.", "child": "The child of {s} is {a}.",
    "sibling": "The sibling of {s} is {a}.", "school": "{s} studied at {a}.",
    "team": "{s} played for {a}.", "position": "{s} plays as {a}.",
    "director": "{s} was directed by {a}.", "film_year": "{s} was released in {a}.",
    "film_country": "The country of {s} is {a}.", "genre": "The genre of {s} is {a}.",
    "starring": "{s} stars {a}.", "producer": "{s} was produced by {a}.",
    "writer": "{s} was written by {a}.", "composer": "{s} was composed by {a}.",
    "performer": "{s} was performed by {a}.", "author": "{s} was written by {a}.",
    "publisher": "{s} was published by {a}.", "label": "{s} was released by {a}.",
    "release_date": "{s} was released on {a}.", "location": "{s} is located in {a}.",
    "founded": "{s} was founded in {a}.", "founder": "{s} was founded by {a}.",
    "headquarters": "{s} is based in {a}.", "owner": "{s} is owned by {a}.",
    "population": "The population of {s} is {a}.", "capital_of": "{s} is the capital of {a}.",
    "known_for": "{s} is known for {a}.",
}  # fmt: skip
SHOWN = 3
SHIPPED = 0.35
# How many demonstrations: mostly few, now and then as many as a service may have.
SHOTS = ((0, 1, 2, 3, 5, 8, 12), (3, 3, 3, 3, 1.5, 0.7, 0.4))


def statement(hop: Hop) -> str:
    """The hop's fact as a sentence: ``Heat was directed by Michael Mann.``"""
    shape = STATEMENTS[hop.fact.kind]
    if hop.answer.isdigit():
        shape = shape.replace(" on {a}", " in {a}")
    return shape.format(s=quote(hop.fact.subject), a=quote(hop.answer))


def conclusion(answer: str) -> str:
    return f"So the answer is {quote(answer)}."


def asked(question: str) -> str:
    """The case that a draft continues; a space joins it with the text so far."""
    return roles.TEMPLATES.render("dragin_case", question=quote(question))


def context(passages: Sequence[str]) -> str:
    """The block before the case: numbered passages and the line that keeps the format."""
    lines = [f"[{number}] {quote(text)}\n" for number, text in enumerate(passages, 1)]
    return roles.TEMPLATES.render("dragin_context", passages="".join(lines)) + "\n"


def shipped_demonstrations() -> str:
    """As the profile `service` shows them."""
    return demonstrations_text(roles.TEMPLATES, may_decline=True) + "\n"


class Drafts:
    """Draws rows of drafts: single facts, bridges and comparisons."""

    def __init__(self, maker: Maker, distractors: Distractors, rng: random.Random) -> None:
        self.maker, self.distractors, self.rng = maker, distractors, rng

    def row(self, words: int) -> list[Segment]:
        """Demonstrations and one question; passages, where shown, of about `words` words."""
        segments = self._demonstrations()
        made = self.made()
        question = (
            vary_surface(made.question, self.rng) if self.rng.random() < 0.3 else made.question
        )
        given = self.given(made)
        if given is not None:
            texts = self.passages(made, given, words)
            segments.append(Segment(context(texts), False))
        segments.append(Segment(asked(question), False))
        segments += self._answer(made, question, given)
        return segments

    def _demonstrations(self) -> list[Segment]:
        """Those that the service ships, or others, now and then the model's to write as well."""
        if self.rng.random() < SHIPPED:
            return [Segment(shipped_demonstrations(), False)]
        written = self.rng.random() < 0.25
        segments = []
        for _ in range(self.rng.choices(*SHOTS)[0]):
            made = self.made()
            segments.append(Segment(asked(made.question), False))
            segments.append(Segment(answer_text(made, made.question) + "\n", written))
        return segments

    def made(self) -> Synthesised:
        draw = self.rng.random()
        if draw < 0.4:
            return self.maker.single(0.8)
        return self.maker.bridge(0.8) if draw < 0.72 else self.maker.comparison(0.8)

    def given(self, made: Synthesised) -> list[int] | None:
        """Which hops' passages the block shows; None for a draft without a block."""
        if self.rng.random() < 0.35:
            return None
        return [number for number in range(len(made.hops)) if self.rng.random() < 0.75][:SHOWN]

    def passages(self, made: Synthesised, given: Sequence[int], words: int) -> list[str]:
        """The given hops' passages among others, in any order, without those that are withheld."""
        gold = [made.hops[number] for number in given]
        texts = [roles.cut(hop.fact.passage, hop.answer, words, self.rng).text for hop in gold]
        near = self.rng.choice(made.hops)
        size = self.rng.choice((SHOWN, SHOWN, 2, 1)) - len(texts)
        if size > 0:
            taken = [hop.fact.passage for hop in made.hops]
            others = self.distractors.beside(reading_of(near), size, taken)
            withheld = [hop.answer for n, hop in enumerate(made.hops) if n not in given]
            shown = [roles.cut(other, "", words, self.rng).text for other in others]
            texts += [text for text in shown if not any(a in text for a in withheld)]
        self.rng.shuffle(texts)
        return texts

    def _answer(
        self, made: Synthesised, question: str, given: Sequence[int] | None
    ) -> list[Segment]:
        """The target, sentence by sentence; under a block a withheld fact counts half the time."""
        hops = [roles.typed_like(hop, question) for hop in made.hops]
        segments = []
        for number, hop in enumerate(hops):
            withheld = given is not None and number not in given
            segments.append(Segment(statement(hop), not withheld or self.rng.random() < 0.5))
        segments.append(Segment(conclusion(made.answer), True))
        return segments


def answer_text(made: Synthesised, question: str) -> str:
    """All sentences of a draft as one text."""
    hops = [roles.typed_like(hop, question) for hop in made.hops]
    return " ".join([*(statement(hop) for hop in hops), conclusion(made.answer)])


def reading_of(hop: Hop) -> Reading:
    fact: Fact = hop.fact
    return Reading(hop.question, hop.answer, fact.passage, fact.kind, fact.subject)
