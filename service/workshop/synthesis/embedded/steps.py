"""Rows of the steps between searches: decompositions, next questions, endings, merges and final
answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from service.prompts.templates import Pair
from service.workshop.facts.comparisons import Comparisons
from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.questions import Maker, Synthesised, hop_of, typed_like
from service.workshop.facts.questions import as_typed as as_typed_answer
from service.workshop.facts.rows import TrainingRow
from service.workshop.facts.splits import is_held_out
from service.workshop.facts.wordings import join_questions, vary_surface
from service.workshop.synthesis.embedded.prompts import RowMaker
from service.workshop.synthesis.embedded.routes import Routing
from service.workshop.synthesis.embedded.sets import Asked, Sets

REFERRING: Final = 0.25  # share of decompositions in which only the first part contains the name
LOST: Final = 0.08  # share of histories in which an answer was not found


class Chain(NamedTuple):
    """A question with its sub-questions and their answers, in the order in which they are asked."""

    question: str
    pairs: tuple[Pair, ...]
    answer: str
    passages: tuple[Paragraph, ...]
    written: bool


class StepRows:
    """Draws rows of `decompose`, `refine`, `ending`, `final`, `comparison`, `merge` and
    `closed`."""

    def __init__(
        self, sets: Sets, maker: Maker, routing: Routing, prompts: RowMaker, rng: random.Random
    ) -> None:
        self.maker, self.routing, self.prompts, self.rng = maker, routing, prompts, rng
        self.comparisons = Comparisons(maker, rng)
        self.known = [chain for row in sets.questions("decompositions") if (chain := known(row))]
        self.read = [a for a in sets.asked("squad_train") if a.answer]
        self.senses = [
            (row["question"], row["answers"][0])
            for row in sets.questions("routing")
            if row["kind"] == "direct" and row["answers"]
        ]

    def decompose(self) -> TrainingRow:
        draw = self.rng.random()
        if draw < REFERRING:
            return self._referring()
        draw = self.rng.random()
        if draw < 0.15:
            question, _ = self.routing.question("single")
            question = vary_surface(question, self.rng)
            part = question if question.endswith("?") else f"{question}?"
            return self.prompts.decompose(question, [part], (), written=False)
        if draw < 0.5:
            made = self.maker.compound()
            heads = [f"{hop.question.rstrip('? ')}?" for hop in made.hops]
            passages, asked = passages_of(made), made.question
        else:
            heads, passages = self.routing.parts(), []
            asked = join_questions(heads, self.rng)
        question = vary_surface(asked, self.rng)
        parts = as_typed(heads, question)
        return self.prompts.decompose(question, parts, passages, written=False)

    def _referring(self) -> TrainingRow:
        """Return a decomposition whose parts use the name instead of "it" or "she"."""
        if self.rng.random() < 0.5:
            (asked, heads), passages = self.routing.owners.referring(), []
        else:
            made = self.maker.referring()
            heads = [f"{hop.question.rstrip('? ')}?" for hop in made.hops]
            asked, passages = made.question, passages_of(made)
        question = vary_surface(asked, self.rng)
        parts = as_typed(heads, question)
        return self.prompts.decompose(question, parts, passages, written=False)

    def refine(self) -> TrainingRow:
        """Draw a next sub-question. If the last one had no answer, it is asked again in other
        words."""
        if self.rng.random() < LOST:
            made = self.maker.bridge()
            lost = Pair(made.hops[0].question, None)
            target = hop_of(made.hops[0].fact, self.rng).question
            question = vary_surface(made.question, self.rng)
            return self.prompts.refine(question, [lost], target, passages_of(made), written=False)
        chain = self.single() if self.rng.random() < 0.12 else self.chain()
        done = self.rng.randrange(len(chain.pairs))
        target, history = chain.pairs[done].question, chain.pairs[:done]
        return self.prompts.refine(
            chain.question, history, target, chain.passages, written=chain.written
        )

    def ending(self) -> TrainingRow:
        chain = self.single() if self.rng.random() < 0.2 else self.chain()
        done = self.rng.random() < 0.5
        pairs = list(chain.pairs if done else chain.pairs[: self.rng.randrange(len(chain.pairs))])
        if done and self.rng.random() < LOST:
            pairs[-1] = Pair(pairs[-1].question, None)
            done = False
        return self.prompts.ending(
            chain.question, pairs, done, chain.passages, written=chain.written
        )

    def final(self) -> TrainingRow:
        chain = self.single() if self.rng.random() < 0.06 else self.chain()
        pairs, answer = list(chain.pairs), chain.answer
        if self.rng.random() < LOST:
            pairs[-1], answer = Pair(pairs[-1].question, None), ""
        return self.prompts.final(
            chain.question, pairs, answer, chain.passages, written=chain.written
        )

    def comparison(self) -> TrainingRow:
        """Draw a `final` row that compares given answers, one of which is sometimes missing."""
        made = self.comparisons.draw()
        question = vary_surface(made.question, self.rng)
        lowered = question == question.lower()
        pairs = [Pair(p.question.lower() if lowered else p.question, p.answer) for p in made.pairs]
        answer = as_typed_answer(made.answer, question)
        if self.rng.random() < LOST:
            place = self.rng.randrange(len(pairs))
            pairs[place], answer = Pair(pairs[place].question, None), ""
        row = self.prompts.final(question, pairs, answer, (), written=False)
        return row.model_copy(update={"task": "comparison"})

    def merge(self) -> TrainingRow:
        """Draw a merge of the parts' answers, one or all of which are sometimes missing."""
        if self.rng.random() < 0.5:
            made = self.maker.compound()
            pairs = [Pair(hop.question, hop.answer) for hop in made.hops]
            passages, asked = passages_of(made), made.question
        else:
            drawn = self.rng.sample(self.read, self.rng.choices((2, 3), (3, 1))[0])
            pairs = [Pair(f"{a.question.rstrip('?. ')}?", a.answer) for a in drawn]
            passages = [p for a in drawn for p in a.gold]
            asked = join_questions([pair.question for pair in pairs], self.rng)
        for place, pair in enumerate(pairs):
            if self.rng.random() < LOST:
                pairs[place] = Pair(pair.question, None)
        question = vary_surface(asked, self.rng)
        return self.prompts.merge(question, pairs, passages, written=False)

    def closed(self) -> TrainingRow:
        question, answer = self.rng.choice(self.senses)
        return self.prompts.closed(vary_surface(question, self.rng), answer)

    def chain(self) -> Chain:
        """Draw a chain: two in five are people's questions, the others are generated by rules."""
        draw = self.rng.random()
        if draw < 0.4 and self.known:
            return self.rng.choice(self.known)
        made = self.maker.bridge() if draw < 0.72 else self.maker.comparison()
        question = vary_surface(made.question, self.rng)
        hops = [typed_like(hop, question) for hop in made.hops]
        pairs = tuple(Pair(hop.question, hop.answer) for hop in hops)
        answer = as_typed_answer(made.answer, question)
        return Chain(question, pairs, answer, tuple(passages_of(made)), False)

    def single(self) -> Chain:
        asked: Asked = self.rng.choice(self.read)
        pair = Pair(f"{asked.question.rstrip('?. ')}?", asked.answer)
        return Chain(asked.question, (pair,), asked.answer, asked.gold, True)


def known(row: dict[str, object]) -> Chain | None:
    """Return the chain of a dataset's row, if each sub-answer is the object of one triple.

    Returns None for other rows, and if a triple is about a held-out title.
    """
    evidences, parts, answers = row.get("evidences"), row["decomposition"], row["answers"]
    if not evidences or not isinstance(evidences, list) or not isinstance(parts, list):
        return None
    if len(evidences) != len(parts) or not isinstance(answers, list) or not answers:
        return None
    if any(is_held_out(name) for subject, _, value in evidences for name in (subject, value)):
        return None
    pairs = tuple(Pair(str(q), str(e[2])) for q, e in zip(parts, evidences, strict=True))
    return Chain(str(row["question"]), pairs, str(answers[0]), (), True)


def passages_of(made: Synthesised) -> list[Paragraph]:
    return [hop.fact.passage for hop in made.hops]


def as_typed(parts: Sequence[str], question: str) -> list[str]:
    """Capitalise the parts, unless the question is in lower case."""
    if question == question.lower():
        return [part.lower() for part in parts]
    return [part[:1].upper() + part[1:] for part in parts]
