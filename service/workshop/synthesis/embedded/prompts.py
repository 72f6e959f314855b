"""Rows of the embedded model: a prompt of the template set that is used when serving, and its
target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from service.core.domain import RouteName
from service.prompts.quoting import quote
from service.prompts.templates import NO_ANSWER, Pair, PassageText, TemplateSet
from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.rows import RowMessage, RowProvenance, TrainingRow, prompt_row
from service.workshop.synthesis.embedded.sets import split_key
from service.workshop.synthesis.roles import Exchange, RoleTurns

PIPELINE: Final = "embedded"
VERSION: Final = 2


class RowMaker:
    """Creates rows. `passages` are the sources of a row; `written` means that people wrote the
    question."""

    def __init__(self, templates: str, seed: int, passages: Mapping[str, Paragraph]) -> None:
        self.templates, self.passages = TemplateSet(templates), passages
        self.turns = RoleTurns(self.templates)
        self.name, self.seed = templates, seed
        self.made = 0

    def answer(
        self, question: str, texts: Sequence[PassageText], answer: str,
        passages: Sequence[Paragraph], *, written: bool,
    ) -> TrainingRow:  # fmt: skip
        """Return a row of the reader. If `answer` is empty, the target declines."""
        prompt = self.templates.answer(question, texts)
        target = quote(answer) or NO_ANSWER
        return self._row("answer", question, prompt, target, passages, written=written)

    def relevance(
        self, question: str, text: PassageText, relevant: bool, passage: Paragraph, *, written: bool
    ) -> TrainingRow:
        turn = self.turns.relevance(question, text, relevant)
        return self._row("relevance", question, *turn, [passage], written=written)

    def route(
        self, question: str, route: RouteName, passages: Sequence[Paragraph], *, written: bool
    ) -> TrainingRow:
        turn = self.turns.route(question, route)
        return self._row("route", question, *turn, passages, written=written)

    def decompose(
        self, question: str, parts: Sequence[str], passages: Sequence[Paragraph], *, written: bool
    ) -> TrainingRow:
        turn = self.turns.decompose(question, parts)
        return self._row("decompose", question, *turn, passages, written=written)

    def refine(
        self, question: str, history: Sequence[Pair], target: str, passages: Sequence[Paragraph],
        *, written: bool,
    ) -> TrainingRow:  # fmt: skip
        turn = self.turns.refine(question, history, target)
        return self._row("refine", question, *turn, passages, written=written)

    def ending(
        self, question: str, history: Sequence[Pair], done: bool, passages: Sequence[Paragraph],
        *, written: bool,
    ) -> TrainingRow:  # fmt: skip
        turn = self.turns.ending(question, history, done)
        return self._row("ending", question, *turn, passages, written=written)

    def final(
        self, question: str, pairs: Sequence[Pair], answer: str, passages: Sequence[Paragraph],
        *, written: bool,
    ) -> TrainingRow:  # fmt: skip
        prompt = self.templates.final(question, pairs)
        target = quote(answer) or NO_ANSWER
        return self._row("final", question, prompt, target, passages, written=written)

    def merge(
        self, question: str, pairs: Sequence[Pair], passages: Sequence[Paragraph], *, written: bool
    ) -> TrainingRow:
        """Return a row with the target ``A and B`` or ``A, B and C``. Parts without an answer are
        left out."""
        found = [quote(pair.answer) for pair in pairs if pair.answer]
        tail = [f"{', '.join(found[:-1])} and {found[-1]}"] if len(found) > 1 else found
        target = tail[0] if tail else NO_ANSWER
        prompt = self.templates.merge(question, pairs)
        return self._row("merge", question, prompt, target, passages, written=written)

    def closed(self, question: str, answer: str) -> TrainingRow:
        prompt = self.templates.closed(question)
        return self._row("closed", question, prompt, quote(answer), (), written=True)

    def dialogue(
        self, task: str, question: str, turns: Sequence[Exchange], passages: Sequence[Paragraph]
    ) -> TrainingRow:
        """Return a row with turns of the user and the model. The loss is computed on all turns of
        the model."""
        messages = [
            message
            for turn in turns
            for message in (
                RowMessage(role="user", content=turn.user),
                RowMessage(role="assistant", content=turn.assistant, learn=True),
            )
        ]
        source = self._source(task, passages, written=False)
        return TrainingRow(task=task, question=question, messages=messages, provenance=source)

    def draft(
        self, question: str, prompt: str, rest: str, passages: Sequence[Paragraph]
    ) -> TrainingRow:
        """Return a row of raw text, which the model continues."""
        row = self._row("dragin", question, prompt, rest, passages, written=False)
        return row.model_copy(update={"raw": True})

    def _row(
        self, task: str, question: str, prompt: str, target: str, passages: Iterable[Paragraph],
        *, written: bool,
    ) -> TrainingRow:  # fmt: skip
        source = self._source(task, passages, written=written)
        return prompt_row(task, question, prompt, target, source)

    def _source(self, task: str, passages: Iterable[Paragraph], *, written: bool) -> RowProvenance:
        self.made += 1
        behind = [self.passages[p.id] for p in passages]  # with their original titles
        return RowProvenance(
            pipeline=PIPELINE, version=VERSION, teacher="rules", item=f"{task}-{self.made}",
            titles=list(dict.fromkeys(split_key(p) for p in behind)),
            answer_title=split_key(behind[0]) if behind else None, written=written,
            sources=list(dict.fromkeys(p.id for p in behind)), templates=self.name,
            seed=self.seed, side="train",
        )  # fmt: skip
