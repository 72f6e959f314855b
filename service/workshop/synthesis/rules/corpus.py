"""The passages, facts and questions that the teacher `rules` uses from one side of the split."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from service.core.domain import Passage
from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.names import Names
from service.workshop.facts.patterns import Fact, all_facts
from service.workshop.facts.questions import (
    Maker,
    Synthesised,
    bridge,
    comparison,
    compound,
    single,
)
from service.workshop.facts.splits import Split
from service.workshop.facts.wordings import COMPARISONS, SAME
from service.workshop.synthesis.contract import BadLine, Dropped, ItemResult, Lines, RowOrigin
from service.workshop.synthesis.inputs import passage_of

Form = Literal["single", "compound", "bridge", "comparison"]
FORMS: Final[tuple[Form, ...]] = ("single", "compound", "bridge", "comparison")
SIZES: Final = ((2, 3, 4), (6, 3, 1))  # numbers of parts of a compound question, and their weights
SHARE: Final = 0.6  # share of training questions with exchanged names
Draw = Callable[[int], ItemResult]


@dataclass(frozen=True)
class Known:
    """What the rules know.

    `passages` and `facts` belong to `side`, and `others` are the passages of the other side.
    `templates` is the template set whose prompts the rows contain, if they contain prompts.
    """

    passages: Sequence[Paragraph]
    others: Sequence[Paragraph]
    side: Split
    rng: random.Random
    templates: str = ""

    @cached_property
    def facts(self) -> list[Fact]:
        return all_facts(self.passages)

    @cached_property
    def maker(self) -> Maker:
        return Maker(self.facts, Names(self.facts), self.rng, unseen=self.side == "test")

    @cached_property
    def titles(self) -> dict[str, str]:
        return {passage.id: passage.title for passage in (*self.passages, *self.others)}

    @cached_property
    def links(self) -> list[tuple[Fact, Fact]]:
        """Return pairs of facts in which the answer of the first is the subject of the second.

        For tests, the first may belong to the other side, because only the answer of the second
        must be held out.
        """
        if self.side == "train":
            return self.maker.links
        every = Maker([*self.facts, *all_facts(self.others)], self.maker.names, self.rng)
        return [pair for pair in every.links if pair[1].passage.held_out]

    @cached_property
    def share(self) -> float:
        """Return the share of facts whose names are exchanged: 0 for tests, or if no names can be
        exchanged."""
        names = self.maker.names
        enough = names.first and names.last and names.titles and names.words
        return SHARE if enough and self.side == "train" else 0.0

    @cached_property
    def comparable(self) -> list[str]:
        """Return the comparable kinds of facts that several subjects have."""
        kinds = [kind for kind, _, _ in COMPARISONS] + list(SAME)
        return [k for k in kinds if len({f.subject for f in self.maker.by_kind.get(k, ())}) > 1]

    @cached_property
    def forms(self) -> list[Form]:
        """Return the forms of questions for which there are enough facts."""
        enough = {
            "single": bool(self.facts),
            "compound": bool(self.maker.rich),
            "bridge": bool(self.links),
            "comparison": bool(self.comparable),
        }
        return [form for form in FORMS if enough[form]]

    def question(self, form: Form) -> Synthesised:
        """Draw one question. Raises Dropped if the drawn facts do not make one."""
        made: Synthesised | None
        match form:
            case "single":
                fact = self.maker.renamed(self._fact(), self.share)
                made = single(fact, self.rng, unseen=self.unseen)
            case "compound":
                made = compound(self.about_one(), self.rng, unseen=self.unseen)
            case "bridge":
                made = bridge(*self.rng.choice(self.links), self.rng, unseen=self.unseen)
            case "comparison":
                made = self._comparison()
        if made is None:
            raise Dropped("nothing to compare")
        return made

    @property
    def unseen(self) -> bool:
        return self.maker.unseen

    def about_one(self) -> list[Fact]:
        """Return two to four facts of different kinds about one subject, in random order."""
        facts = self.maker.by_subject[self.rng.choice(self.maker.rich)]
        by_kind = {fact.kind: self._clear(fact) for fact in facts}
        size = self.rng.choices(*SIZES)[0]
        return self.rng.sample(list(by_kind.values()), min(size, len(by_kind)))

    def _fact(self) -> Fact:
        return self._clear(self.maker.fact())

    def _clear(self, fact: Fact) -> Fact:
        """Return the fact. Raises Dropped if passages give its subject several answers."""
        same = [f for f in self.maker.by_subject[fact.subject] if f.kind == fact.kind]
        if len({other.answer for other in same}) > 1:
            raise Dropped("several answers")
        return fact

    def _comparison(self) -> Synthesised | None:
        kind = self.rng.choice(self.comparable)
        a, b = (self._clear(self.maker.fact(kind)) for _ in range(2))
        return None if a.subject == b.subject else comparison(a, b, self.rng, unseen=self.unseen)

    def source(self, facts: Sequence[Fact], answers: Sequence[Fact]) -> RowOrigin:
        """Return the origin of a row made from facts.

        A passage keeps its id and original title if names were exchanged.
        """
        return RowOrigin(
            tuple(dict.fromkeys(fact.passage.id for fact in facts)),
            tuple(dict.fromkeys(self.titles[fact.passage.id] for fact in facts)),
            tuple(dict.fromkeys(self.titles[fact.passage.id] for fact in answers)),
        )


def made_of(known: Known, made: Synthesised) -> RowOrigin:
    """Return the origin of a question.

    All hops of a compound question or a comparison contain the answer; otherwise the last one does.
    """
    facts = [hop.fact for hop in made.hops]
    last = made.route == "complex" and made.form == "bridge"
    return known.source(facts, facts[-1:] if last else facts)


def served(passage: Paragraph) -> Passage:
    return Passage(passage.id, passage.title, passage.text)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The passages and invalid lines of an input, and the facts found in it."""

    known: Known
    bad: Sequence[tuple[int, str]]

    @property
    def counts(self) -> Mapping[str, int]:
        known = self.known
        return {
            "passages": len(known.passages) + len(known.others),
            "of this side": len(known.passages),
            "facts": len(known.facts),
        }


def read_corpus(
    lines: Lines, bad: Sequence[tuple[int, str]], side: Split, seed: int, templates: str = ""
) -> Corpus:
    """Read passages (`id`, `title`, `text`) from the lines of an input. A line with a repeated id
    is invalid."""
    passages: dict[str, Paragraph] = {}
    wrong = list(bad)
    for number, line in lines:
        try:
            given = passage_of(line)
            if given.passage_id in passages:
                raise BadLine("id of an earlier line")
            passages[given.passage_id] = Paragraph(given.passage_id, given.title, given.text, "")
        except BadLine as error:
            wrong.append((number, error.reason))
    own = [p for p in passages.values() if p.held_out is (side == "test")]
    others = [p for p in passages.values() if p.held_out is not (side == "test")]
    return Corpus(Known(own, others, side, random.Random(seed), templates), sorted(wrong))
