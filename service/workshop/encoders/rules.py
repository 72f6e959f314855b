"""Lessons made by rules from facts in passages, without a teacher and without people's questions.

The forms are single questions, chains of two and three hops, and comparisons of two things or of
two films by their directors. Names are exchanged in most of them, so that the models read instead
of remembering.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from service.workshop.encoders.lessons import (
    HopLesson,
    Lesson,
    Rewrite,
    UsefulWord,
    Wording,
    retyped,
    rewritten,
    text_words,
    worded,
)
from service.workshop.encoders.marks import Marks, mark_fact
from service.workshop.facts.names import substitute
from service.workshop.facts.patterns import Fact
from service.workshop.facts.questions import DATES, Maker
from service.workshop.facts.wordings import COMPARISONS, DIRECTED, PHRASES, SAME, SINGLE, wordings

FORMS = ("bridge",) * 6 + ("chain", "single", "single", "comparison", "comparison", "directed")
MADE = 0.6  # share of items with exchanged names, which cover more relations than real links
NOISE = 0.25  # share of rewrites with an additional info that is irrelevant
SECOND = (
    "birth_date", "death_date", "birth_place", "death_place", "nationality", "father", "mother",
    "spouse", "occupation", "school", "child", "sibling", "known_for",
)  # fmt: skip
FIRST = (
    "director", "director", "director", "father", "mother", "spouse", "composer", "performer",
    "author", "writer", "starring", "producer", "child", "founder",
)  # fmt: skip
KIN = ("father", "mother", "spouse", "child")


class MarkedFact(NamedTuple):
    """A fact with its marked passage."""

    fact: Fact
    marks: Marks

    def useful_words(self, rng: random.Random) -> list[UsefulWord]:
        """Return the marked words as a labeler might return them, without some words outside of the
        answer."""
        missed = rng.choice((0.0, 0.0, 0.2, 0.5))
        cut = zip(text_words(self.fact.passage), *self.marks, strict=True)
        return [
            UsefulWord(word, bool(answer))
            for word, useful, answer in cut
            if answer or (useful and rng.random() >= missed)
        ]


class Rules:
    """Draws lessons from facts on one side of the split.

    `titles` maps passage ids to real titles. `links` are pairs of facts in which the answer of the
    first is the subject of the second; by default, all those of `maker`.
    """

    def __init__(
        self,
        maker: Maker,
        titles: Mapping[str, str],
        rng: random.Random,
        *,
        made: float = MADE,
        links: Sequence[tuple[Fact, Fact]] | None = None,
    ) -> None:
        self.maker, self.titles, self.rng, self.made = maker, titles, rng, made
        self.links = maker.links if links is None else links
        self.count = 0

    def item(self, form: str = "") -> Lesson | None:
        """Return a lesson of a form, or None if the drawn facts do not make one."""
        form = form or self.rng.choice(FORMS)
        makers: dict[str, Callable[[], Lesson | None]] = {
            "single": lambda: self._chain(form, self._single()),
            "bridge": lambda: self._chain(form, self._two()),
            "chain": lambda: self._chain(form, self._made(3)),
            "comparison": self._comparison,
            "directed": self._directed,
        }
        return makers[form]()

    def _single(self) -> list[Fact]:
        return [self.maker.renamed(self.maker.fact(), self.made)]

    def _two(self) -> list[Fact]:
        if self.links and self.rng.random() >= self.made:
            return list(self.rng.choice(self.links))
        return self._made(2)

    def _made(self, size: int) -> list[Fact]:
        """Return a chain of facts in which each subject is renamed to the answer of the previous
        fact."""
        rng, by_kind, names = self.rng, self.maker.by_kind, self.maker.names
        pools = [FIRST, *[KIN] * (size - 2), SECOND]
        facts: list[Fact] = []
        for place, pool in enumerate(pools):
            drawn = self.maker.fact(rng.choice([kind for kind in pool if kind in by_kind]))
            subject = facts[-1].answer if facts else ""
            answer = names.person(rng) if place < size - 1 else ""
            facts.append(substitute(drawn, names, rng, subject=subject, answer=answer))
        return facts

    def _chain(self, form: str, facts: Sequence[Fact]) -> Lesson | None:
        found = self._found(facts)
        if found is None or any(a.answer != b.subject for a, b in pairwise(facts)):
            return None
        name, phrases = facts[0].subject, []
        for fact in facts[:-1]:
            name = self.rng.choice(PHRASES[fact.kind]).format(s=name)
            phrases.append(name)
        wording = self._typed(self._asked(facts[-1]).format(s=name), phrases)
        if wording is None:
            return None
        question, parts, rewrites = wording.text, [], []
        for hop, one in enumerate(found, 1):
            parts.append(
                HopLesson(wording.text, one.fact.passage, one.marks.useful, one is found[-1])
            )
            if one is not found[-1]:
                step = self._rewrite(wording, hop, [one])
                if step is None:
                    return None
                rewrite, wording = step
                rewrites.append(rewrite)
        return self._item(form, question, parts, rewrites, facts)

    def _comparison(self) -> Lesson | None:
        """Return a lesson with two passages found by one query. The thing mentioned first is
        resolved first."""
        by_kind = self.maker.by_kind
        choices = [(k, ws) for k, _, ws in COMPARISONS if k in by_kind]
        choices += [(k, ws) for k, ws in SAME.items() if k in by_kind]
        kind, options = self.rng.choice(choices)
        a, b = (self.maker.renamed(self.maker.fact(kind), self.made) for _ in range(2))
        found = self._found((a, b))
        text = self._one_of(options).format(a=a.subject, b=b.subject)
        wording = self._typed(text, (a.subject,))
        if found is None or wording is None or a.subject == b.subject:
            return None
        return self._beside("comparison", wording.text, wording, 1, found)

    def _directed(self) -> Lesson | None:
        """Return a question about two films and their directors."""
        kind, _, options = self.rng.choice([d for d in DIRECTED if d[0] in self.maker.by_kind])
        rng, names = self.rng, self.maker.names
        films = [substitute(self.maker.fact("director"), names, rng) for _ in range(2)]
        people = [substitute(self.maker.fact(kind), names, rng, subject=f.answer) for f in films]
        found, then = self._found(films), self._found(people)
        a, b = (film.subject for film in films)
        text = self._one_of(options).format(a=a, b=b)
        wording = self._typed(text, (a, b))
        named = all(f.answer == p.subject for f, p in zip(films, people, strict=True))
        if found is None or then is None or wording is None or a == b or not named:
            return None
        together = self._rewrite(wording, 2, found)
        if together is None:
            return None
        rewrite, following = together
        parts = [
            HopLesson(wording.text, one.fact.passage, one.marks.useful, False) for one in found
        ]
        item = self._beside("directed", wording.text, following, 3, then)
        if item is None:
            return None
        titles = [*self._titles(films), *item.titles]
        return item._replace(
            parts=[*parts, *item.parts], rewrites=[rewrite, *item.rewrites], titles=titles
        )

    def _beside(
        self, form: str, question: str, wording: Wording, hop: int, found: Sequence[MarkedFact]
    ) -> Lesson | None:
        """Return two final parts with the same query. After the first is found, the second remains
        to be found."""
        step = self._rewrite(wording, hop, found[:1], keep=False)
        if step is None:
            return None
        parts = [
            HopLesson(wording.text, one.fact.passage, one.marks.useful, one is found[-1])
            for one in found
        ]
        return self._item(form, question, parts, step[:1], [one.fact for one in found])

    def _rewrite(
        self, wording: Wording, hop: int, found: Sequence[MarkedFact], *, keep: bool = True
    ) -> tuple[Rewrite, Wording] | None:
        useful = [one.useful_words(self.rng) for one in found]
        if not keep:
            useful = [[UsefulWord(word.text, False) for word in info] for info in useful]
        if self.rng.random() < NOISE and (noise := self._noise()):
            useful.insert(self.rng.choice((0, len(useful))), noise)
        made = rewritten(wording, hop, useful)
        if made is None:
            return None
        infos, marks, following = made
        return Rewrite(wording.text, infos, marks), following

    def _noise(self) -> list[UsefulWord]:
        """Return an info from a passage that the labeler should have dropped."""
        fact = self.maker.fact()
        marks = mark_fact(fact)
        if marks is None:
            return []
        return [
            UsefulWord(word.text, False) for word in MarkedFact(fact, marks).useful_words(self.rng)
        ]

    def _found(self, facts: Sequence[Fact]) -> list[MarkedFact] | None:
        marked = [(fact, mark_fact(fact)) for fact in facts]
        found = [MarkedFact(fact, marks) for fact, marks in marked if marks]
        return found if len(found) == len(facts) else None

    def _asked(self, fact: Fact) -> str:
        """Return a wording with a gap for the subject."""
        options = wordings(SINGLE[fact.kind], unseen=self.maker.unseen)
        if fact.kind in DATES and not fact.answer.isdigit():
            options = [option for option in options if "year" not in option] or options
        return self.rng.choice(options)

    def _one_of(self, options: Sequence[str]) -> str:
        return self.rng.choice(wordings(options, unseen=self.maker.unseen))

    def _typed(self, text: str, phrases: Sequence[str]) -> Wording | None:
        first = text[:1].upper() + text[1:]
        wording = worded(first, phrases) or worded(text, phrases)
        return wording and retyped(wording, self.rng)

    def _titles(self, facts: Sequence[Fact]) -> list[str]:
        return [self.titles[fact.passage.id] for fact in facts]

    def _item(
        self,
        form: str,
        question: str,
        parts: Sequence[HopLesson],
        rewrites: Sequence[Rewrite],
        facts: Sequence[Fact],
    ) -> Lesson:
        self.count += 1
        titles = self._titles(facts)
        return Lesson(f"{form}-{self.count}", form, question, parts, rewrites, titles, titles[-1])
