"""Rows of reading: answers from one to four passages, and the relevance of a passage.

Distractors are passages that BM25 finds for a question among all passages of the datasets. A fifth
of the questions cannot be answered from the passages shown. Rows that show the same passages are
adjacent (see `sets`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from service.prompts.templates import PassageText
from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.names import Names
from service.workshop.facts.questions import Maker, Synthesised, hop_of
from service.workshop.facts.rows import TrainingRow
from service.workshop.facts.search import Nearest
from service.workshop.facts.splits import canonical_form
from service.workshop.facts.wordings import vary_surface
from service.workshop.synthesis.embedded.prompts import RowMaker
from service.workshop.synthesis.embedded.sets import HOPS, READING, Asked, Sets, Sheets, Shown

SHOWN: Final = {1: 50, 2: 20, 3: 16, 4: 14}  # number of passages in a prompt, with its weight
CLOSE: Final = 12  # number of hits from which distractors are drawn
UNANSWERABLE: Final = 0.2
UNTITLED: Final = 0.15  # share of titled passages that are shown without their title
WHOLE: Final = 0.6  # share of passages shown in full; others are a window of 35 to 90 words
# Shares of the sheets. A sheet of `squad_train` has several questions, one of `facts` has one.
SOURCES: Final = {"squad_train": 0.60, "boolq": 0.13, "quoref": 0.08, HOPS: 0.09, "facts": 0.10}
MOST: Final = 9  # most answerable questions of a sheet
JUDGED: Final = 3  # most questions that a passage answers, and as many that it does not answer


class ComprehensionRows:
    """Draws rows from people's questions, and from facts with exchanged names."""

    def __init__(self, sets: Sets, maker: Maker, prompts: RowMaker, rng: random.Random) -> None:
        self.maker, self.prompts, self.rng = maker, prompts, rng
        self.names: Names = maker.names
        self.nearest = Nearest(list(sets.passages.values()))
        every = {name: sets.asked(name) for name in (*READING, HOPS)}
        self.asked = {n: [a for a in rows if a.answer] for n, rows in every.items()}
        self.sources = {n: part for n, part in SOURCES.items() if self.asked.get(n, True)}
        self.turns = {name: _shuffled(rows, rng) for name, rows in self.asked.items()}
        self.sheets = Sheets((a for name in READING for a in every[name]), rng)

    def answer(self) -> list[TrainingRow]:
        source = self.rng.choices(list(self.sources), list(self.sources.values()))[0]
        if source == "facts":
            return [self._fact_answer()]
        if source == HOPS:
            return [self._two_hop_answer()]
        return self._sheet(self._next(source))

    def _next(self, source: str) -> Asked:
        """Return the next question of a set. Each occurs once before any occurs again."""
        turn = self.turns[source]
        if not turn:
            turn.extend(_shuffled(self.asked[source], self.rng))
        return turn.pop()

    def _size(self) -> int:
        return self.rng.choices(list(SHOWN), list(SHOWN.values()))[0]

    def _sheet(self, asked: Asked) -> list[TrainingRow]:
        """Return rows on the question's passage, in full or cut around its answer, with similar
        passages."""
        size = self._size() - 1
        others = self.distractors(asked.question, asked.answer, asked.gold, size)
        shown = [Shown(asked.gold[0], self.cut(asked.gold[0], asked.answer))]
        shown += [Shown(other, self.cut(other, "")) for other in others]
        self.rng.shuffle(shown)
        answered = self.sheets.answerable(shown, MOST)
        refusals = UNANSWERABLE / (1 - UNANSWERABLE) * len(answered)
        count = int(refusals) + (self.rng.random() < refusals % 1)
        near = self.nearest.search(asked.question, CLOSE)
        refused = self.sheets.refused(shown, near, count)
        if len(refused) < count:
            anywhere = self.rng.sample(self.nearest.passages, CLOSE)
            refused += self.sheets.refused(shown, anywhere, count - len(refused))
        rows = [self._row(one, shown, one.answer) for one in answered]
        return rows + [self._row(one, shown, "") for one in refused]

    def _row(self, asked: Asked, shown: Sequence[Shown], answer: str) -> TrainingRow:
        """Return a row. `answer` is empty if no shown passage answers; otherwise the gold passage
        is the first of `shown`."""
        ids = {p.id for p in asked.gold}
        passages = [s.passage for s in sorted(shown, key=lambda s: s.passage.id not in ids)]
        question = vary_surface(asked.question, self.rng)
        texts = [s.text for s in shown]
        return self.prompts.answer(question, texts, answer, passages, written=True)

    def _two_hop_answer(self) -> TrainingRow:
        """Return a row with both gold passages of a two-hop question, among others found with
        them."""
        asked = self._next(HOPS)
        count = self.rng.choice((0, 0, 1, 2))
        others = self.rng.sample(asked.shown, min(count, len(asked.shown)))
        texts = [PassageText(p.title, p.text) for p in asked.gold]
        texts += [self.cut(other, "") for other in others]
        self.rng.shuffle(texts)
        question = vary_surface(asked.question, self.rng)
        passages = [*asked.gold, *others]
        return self.prompts.answer(question, texts, asked.answer, passages, written=True)

    def _fact_answer(self) -> TrainingRow:
        """Return a row on a fact, mostly with exchanged names; some rows have two hops."""
        draw = self.rng.random()
        if draw < 0.25:
            made = self.maker.bridge(0.8) if draw < 0.13 else self.maker.comparison(0.8)
            return self._facts_row(made, [hop.fact.passage for hop in made.hops])
        hop = hop_of(self.maker.renamed(self.maker.fact()), self.rng)
        made = Synthesised("single", hop.fact.kind, hop.question, (hop,), hop.answer)
        if (
            self.rng.random() < UNANSWERABLE
        ):  # the same passage with a question about another subject
            other = self.names.subject(hop.fact.kind, self.rng)
            asked = hop.question.replace(hop.fact.subject, other)
            if other not in hop.fact.passage.text and asked != hop.question:
                made = made.__class__("single", made.form, asked, made.hops, "")
        return self._facts_row(made, [hop.fact.passage])

    def _facts_row(self, made: Synthesised, gold: Sequence[Paragraph]) -> TrainingRow:
        answers = {hop.fact.passage.id: hop.answer for hop in made.hops}
        size = max(0, min(self._size(), 4) - len(gold))
        others = self.distractors(made.question, made.answer, gold, size)
        texts = [self.cut(p, answers[p.id]) for p in gold]
        texts += [self.cut(other, "") for other in others]
        self.rng.shuffle(texts)
        question = vary_surface(made.question, self.rng)
        passages = [*gold, *others]
        return self.prompts.answer(question, texts, made.answer, passages, written=False)

    def relevance(self) -> list[TrainingRow]:
        """Draw relevance judgements, of which half are true. A false one shows a passage that BM25
        ranks high."""
        if self.rng.random() < 0.3:
            return [self._fact_relevance()]
        names = [name for name in READING if name in self.sources]
        asked = self._next(self.rng.choices(names, [self.sources[name] for name in names])[0])
        shown = [Shown(asked.gold[0], self.cut(asked.gold[0], asked.answer))]
        helped = self.sheets.answerable(shown, JUDGED)
        near = self.nearest.search(asked.question, CLOSE)
        others = self.sheets.refused(shown, near, len(helped))
        judged = [*((one, True) for one in helped), *((one, False) for one in others)]
        return [
            self.prompts.relevance(
                vary_surface(one.question, self.rng), shown[0].text, true, shown[0].passage,
                written=True,
            )
            for one, true in judged
        ]  # fmt: skip

    def _fact_relevance(self) -> TrainingRow:
        relevant = self.rng.random() < 0.5
        hop = hop_of(self.maker.renamed(self.maker.fact()), self.rng)
        gold = hop.fact.passage
        passage = gold if relevant else self.distractors(hop.question, hop.answer, [gold], 1)[0]
        text = self.cut(passage, hop.answer if relevant else "")
        typed = vary_surface(hop.question, self.rng)
        return self.prompts.relevance(typed, text, relevant, passage, written=False)

    def distractors(
        self, question: str, answer: str, gold: Sequence[Paragraph], size: int
    ) -> list[Paragraph]:
        """Return `size` passages without the answer among those that BM25 finds for the
        question."""
        if size <= 0:
            return []
        taken = {p.id for p in gold} | {p.text for p in gold}
        wanted = canonical_form(answer) if answer.lower() not in {"yes", "no"} else ""
        found = [
            p for p in self.nearest.search(question, CLOSE + 4 * size)
            if p.id not in taken and p.text not in taken
            and not (wanted and f" {wanted} " in f" {canonical_form(p.text)} ")
        ][:CLOSE]  # fmt: skip
        while len(found) < size:
            found.append(self.rng.choice(self.nearest.passages))
        first = 1 if self.rng.random() < 0.5 else 0  # half of the time with the best hit
        return found[:first] + self.rng.sample(found[first:], size - first)

    def cut(self, passage: Paragraph, answer: str) -> PassageText:
        """Return the passage as a prompt shows it: complete, or a part that contains the answer."""
        title = passage.title if self.rng.random() >= UNTITLED else ""
        pieces = passage.text.split()
        words = self.rng.randint(35, 90)
        if len(pieces) <= words + 10 or self.rng.random() < WHOLE:
            return PassageText(title, passage.text)
        before = len(passage.text[: max(passage.text.find(answer), 0)].split()) if answer else 0
        if answer.lower() in {"yes", "no"} or (answer and answer not in passage.text):
            return PassageText(title, passage.text)  # the evidence may be anywhere in the passage
        if not answer:
            before = self.rng.randrange(len(pieces))
        room = max(0, words - len(answer.split()))
        start = min(max(0, before - self.rng.randint(0, room)), len(pieces) - words)
        return PassageText(title, " ".join(pieces[start : start + words]))


def _shuffled(rows: Sequence[Asked], rng: random.Random) -> list[Asked]:
    return rng.sample(rows, len(rows))
