"""Rows of DRAGIN's drafts (METHODS.md §3.3): reasoning that ends in ``So the answer is X.``

The rows are raw text without turns, as in the prompt profile `service`. A third of the rows have no
retrieved passages, and the exchanged names are unknown to the model, which thus learns to be
uncertain.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from service.prompts.quoting import quote
from service.strategies.drafting.layout import Layout, opening_layout, shown
from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.questions import Hop, Maker, Synthesised, typed_like
from service.workshop.facts.rows import TrainingRow
from service.workshop.facts.wordings import STATEMENTS, vary_surface
from service.workshop.synthesis.embedded.prompts import RowMaker
from service.workshop.synthesis.embedded.reading import ComprehensionRows


def statement(hop: Hop) -> str:
    """Return the fact of a hop as a sentence: ``Heat was directed by Michael Mann.``"""
    shape = STATEMENTS[hop.fact.kind]
    if hop.answer.isdigit():
        shape = shape.replace(" on {a}", " in {a}")
    return shape.format(s=quote(hop.fact.subject), a=quote(hop.answer))


def conclusion(answer: str) -> str:
    return f"So the answer is {quote(answer)}."


UNRETRIEVED: Final = 0.35
CONTINUED: Final = 0.35  # share of rows whose first sentences are part of the prompt
TOP: Final = 3  # passages in the loop's prompt


class Drafts:
    """Draws drafts about facts, mostly with exchanged names: single facts, bridges and
    comparisons."""

    def __init__(
        self, maker: Maker, reading: ComprehensionRows, prompts: RowMaker, rng: random.Random
    ) -> None:
        self.maker, self.reading, self.prompts, self.rng = maker, reading, prompts, rng

    def dragin(self) -> TrainingRow:
        made = self._made()
        draw = self.rng.random()
        question = vary_surface(made.question, self.rng) if draw < 0.3 else made.question
        sentences = [statement(typed_like(hop, question)) for hop in made.hops]
        sentences.append(conclusion(made.answer))
        layout = opening_layout(self.prompts.templates, question, may_decline=True)
        behind = [hop.fact.passage for hop in made.hops]
        if self.rng.random() >= UNRETRIEVED:
            others = self._others(made, max(0, TOP - len(behind)))
            layout = replace(layout, passages=self._shown(made, others))
            behind += others
        done = 0
        if self.rng.random() < CONTINUED:
            done = self.rng.randrange(len(sentences))
            layout = replace(layout, written=" ".join(sentences[:done]))
        return self._row(question, layout, " ".join(sentences[done:]), behind)

    def _row(
        self, question: str, layout: Layout, rest: str, behind: list[Paragraph]
    ) -> TrainingRow:
        """Return a row whose target ends with the answer, since the next line would begin another
        question."""
        return self.prompts.draft(question, layout.prompt().text, f" {rest}\n", behind)

    def _made(self) -> Synthesised:
        """Return a question whose passages name their subject, because the prompt shows no
        titles."""
        while True:
            draw = self.rng.random()
            made = self.maker.single() if draw < 0.25 else self.maker.bridge()
            if draw > 0.75:
                made = self.maker.comparison()
            if all(hop.fact.subject in hop.fact.passage.text for hop in made.hops):
                return made

    def _others(self, made: Synthesised, most: int) -> list[Paragraph]:
        hop = self.rng.choice(made.hops)
        gold = [hop.fact.passage for hop in made.hops]
        return self.reading.distractors(hop.question, made.answer, gold, self.rng.randint(0, most))

    def _shown(self, made: Synthesised, others: list[Paragraph]) -> tuple[str, ...]:
        texts = [self.reading.cut(hop.fact.passage, hop.answer).text for hop in made.hops]
        texts += [self.reading.cut(other, "").text for other in others]
        self.rng.shuffle(texts)
        return shown(texts)
