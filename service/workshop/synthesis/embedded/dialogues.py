"""Rows in the tuned format of Auto-RAG (METHODS.md §2.3): dialogues with the retriever's
documents."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from service.prompts.quoting import quote
from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.questions import Hop, Maker, Synthesised, hop_of, typed_like
from service.workshop.facts.rows import TrainingRow
from service.workshop.facts.wordings import vary_surface
from service.workshop.synthesis.embedded.prompts import RowMaker
from service.workshop.synthesis.embedded.reading import ComprehensionRows
from service.workshop.synthesis.roles import Exchange

MISSED: Final = 0.2  # share of hops whose first documents do not contain the answer


class Dialogues:
    """Draws dialogues about facts with exchanged names. A document consists of at most two
    passages."""

    def __init__(
        self, maker: Maker, reading: ComprehensionRows, prompts: RowMaker, rng: random.Random
    ) -> None:
        self.maker, self.reading, self.prompts, self.rng = maker, reading, prompts, rng

    def autorag(self) -> TrainingRow:
        made = self._made()
        question = vary_surface(made.question, self.rng)
        documents: list[tuple[int, list[str]]] = []
        repeats: list[str] = []
        behind: list[Paragraph] = []
        for number, hop in enumerate(made.hops):
            if self.rng.random() < MISSED:
                others = self._others(hop, self.rng.randint(1, 2))
                documents.append((-1, [self._text(p, "") for p in others]))
                repeats.append(hop_of(hop.fact, self.rng).question)
                behind += others
            others = self._others(hop, self.rng.randint(0, 1))
            texts = [self._text(hop.fact.passage, hop.answer)]
            texts += [self._text(p, "") for p in others]
            self.rng.shuffle(texts)
            documents.append((number, texts))
            behind += [hop.fact.passage, *others]
        turns = autorag_turns(made, question, documents, repeats)
        return self.prompts.dialogue("autorag", question, turns, behind)

    def _made(self) -> Synthesised:
        """Return a question whose passages name their subject, because a document shows no
        titles."""
        while True:
            made = self.maker.single() if self.rng.random() < 0.4 else self.maker.bridge()
            if all(hop.fact.subject in hop.fact.passage.text for hop in made.hops):
                return made

    def _others(self, hop: Hop, size: int) -> Sequence[Paragraph]:
        return self.reading.distractors(hop.question, hop.answer, [hop.fact.passage], size)

    def _text(self, passage: Paragraph, answer: str) -> str:
        return self.reading.cut(passage, answer).text


def document_turn(number: int, texts: Sequence[str]) -> str:
    """Return the retriever's turn: a user message with at most two passages, without titles."""
    return f"Retrieved Document_{number}: {quote(' '.join(texts))}"


def autorag_turns(
    made: Synthesised,
    question: str,
    documents: Sequence[tuple[int, Sequence[str]]],
    repeats: Sequence[str],
) -> list[Exchange]:
    """Return a dialogue.

    Each document is a pair: the index of the hop that it answers, or -1 if it answers none, and its
    texts. `repeats` are the queries after documents that answer no hop.
    """
    hops = [typed_like(hop, question) for hop in made.hops]
    needs = {1: "This needs one fact."}.get(len(hops), f"This needs {len(hops)} facts.")
    reply = f"Analysis: {needs}\n\nInitial Query: {quote(hops[0].question)}"
    turns = [Exchange(f"Question: {quote(question)}", reply)]
    found, again = 0, iter(repeats)
    for number, (hop, texts) in enumerate(documents, 1):
        if hop < 0:
            note, query = "The documents do not tell.", next(again)
        else:
            found = hop + 1
            note = f"{quote(hops[hop].fact.subject)}: {quote(hops[hop].answer)}."
            query = hops[found].question if found < len(hops) else ""
        tail = f"Refined Query: {quote(query)}" if query else f"Final Answer: {quote(made.answer)}"
        user = document_turn(number, texts)
        turns.append(Exchange(user, f"Intermediate Answer_{number}: {note}\n\n{tail}"))
    return turns
