"""The reader: judges passages and answers from them (REL and GEN; METHODS.md §1.3).

By prompts for language models, or by an encoder, which copies its answers from the passages: one
pass over all of them judges each, and finds the answer or declines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from service.answer.events import Place, Token, TokenRole
from service.answer.inquiry import OpenStep
from service.core.domain import Passage
from service.core.errors import LimitReached
from service.encoders.base import Extractor, Reading
from service.engines.base import Delta, GenerationRequest, TokenUsage
from service.prompts.templates import PassageText
from service.strategies.revelator.generation import write_answer
from service.strategies.revelator.relevance import Verdict, judge_relevance

WORKER: Final = "encoder"  # in metrics


class Reader(Protocol):
    """Reads for one question of an open step.

    `reads_all`: it is shown every relevant passage, not only the first ones.
    """

    reads_all: bool

    async def judge(self, passages: Sequence[Passage]) -> list[Verdict]:
        """Return whether each passage helps, None where that is not known, or the limit of the
        question that prevented its judgement."""

    async def read(self, passages: Sequence[Passage], as_role: TokenRole) -> Reading:
        """Stream the answer in the passages, and leave it in `step.answer`: None if there is none,
        flagged `declined` if the passages were read. `step.stopped_by` names the limit of the
        question that was reached, if any."""


def reader_of(step: OpenStep, question: str) -> Reader:
    """Return the reader that the settings name."""
    extractor = step.inquiry.roles.extractor
    if extractor is None:
        return PromptReader(step, question)
    return EncoderReader(step, question, extractor)


class PromptReader:
    """Asks the language models of the judge and of the reader."""

    reads_all = False

    def __init__(self, step: OpenStep, question: str) -> None:
        self._step, self._question = step, question

    async def judge(self, passages: Sequence[Passage]) -> list[Verdict]:
        return await judge_relevance(self._step, self._question, passages)

    async def read(self, passages: Sequence[Passage], as_role: TokenRole) -> Reading:
        texts = [PassageText(passage.title, passage.text) for passage in passages]
        prompt = self._step.inquiry.roles.reader.templates.answer(self._question, texts)
        await write_answer(self._step, prompt, as_role)
        return written(self._step)


def written(step: OpenStep) -> Reading:
    """Return what a language model has written in a step."""
    answer = step.answer
    plain = (answer or "").strip(" .!").casefold()
    if answer is None:
        return Reading("none", "")
    return Reading("yes" if plain == "yes" else "no" if plain == "no" else "span", answer)


class EncoderReader:
    """Reads all passages of a question in one batch, which counts as one call. Without passages,
    the language model answers."""

    reads_all = True

    def __init__(self, step: OpenStep, question: str, extractor: Extractor) -> None:
        self._step, self._question, self._extractor = step, question, extractor
        self._judged: tuple[Sequence[Passage], Reading] | None = None

    async def judge(self, passages: Sequence[Passage]) -> list[Verdict]:
        try:
            reading = await self._run(passages, final=False)
        except LimitReached as limit:
            return [limit] * len(passages)
        self._judged = passages, reading
        return [score >= self._extractor.threshold for score in reading.scores]

    async def read(self, passages: Sequence[Passage], as_role: TokenRole) -> Reading:
        step = self._step
        if not passages:
            return await PromptReader(step, self._question).read(passages, as_role)
        try:
            if self._judged is None:
                self._judged = passages, await self._run(passages, final=as_role == "answer")
        except LimitReached as limit:
            step.stopped_by = limit.stopped_by
            return Reading("none", "")
        read, reading = self._judged
        if reading.kind == "none" or reading.passage is None:
            step.flag("declined")
            return reading
        shown = [(reading.passage, reading.spans)]
        if reading.rival:
            step.flag("conflict")
            shown.append(reading.rival)
        step.places = [
            Place(passage_id=read[at].passage_id, start=start, end=end)
            for at, spans in shown
            for start, end in spans or ((0, len(read[at].text)),)
        ]
        step.answer, step.confidence, step.probability = reading.answer, *[reading.score] * 2
        await step.emit(Token(role=as_role, text=reading.answer))
        return reading

    async def _run(self, passages: Sequence[Passage], *, final: bool) -> Reading:
        step = self._step
        if not passages:
            return Reading("none", "")
        texts = "\n".join([self._question, *(passage.text for passage in passages)])
        role = replace(step.inquiry.roles.reader, model=None, pooled=True)
        call = step.begin(role, GenerationRequest(prompt=texts, max_tokens=1), final=final)
        try:
            work = self._extractor.read(self._question, passages)
            reading = await step.timed(work, final=final)
            usage = TokenUsage(reading.pieces, 0)
            call.see(Delta("", finish="stop", usage=usage, worker=WORKER))
        finally:
            step.count(call)
        return reading
