"""GEN over one passage at a time (METHODS.md §1.3), for models that other passages distract.

The reader is shown the best-ranked passage alone, and the next one only if it finds no answer
there: its declining is the judgement of relevance, and most questions need one or two calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Final

from service.answer.events import Judgement, Token, TokenRole
from service.answer.inquiry import OpenStep
from service.core.domain import Passage
from service.core.errors import LimitReached
from service.engines.base import GenerationRequest, Message
from service.prompts.templates import PassageText, Prompt
from service.strategies.revelator.counts import corrected_count
from service.strategies.revelator.generation import ANSWER_TOKENS, vote, write_answer
from service.strategies.revelator.parsing import DECLINED, NOTHING, AnswerReading, read_answer
from service.text.sentences import sentences

DECLINING: Final = "the reader found no answer"
_PIECE = re.compile(r"#\d+\Z")


async def answer_in_turn(
    step: OpenStep, question: str, passages: Sequence[Passage], top_k: int, as_role: TokenRole
) -> bool:
    """Read at most the first `top_k` passages, grouped by document, until one document answers the
    question; judge each passage, and leave the answer in `step.answer`, as `write_answer` does.

    Returns whether a passage was relevant, or whether a limit of the question, given in
    `step.stopped_by`, ended the reading before that was known. If the reader's replies to some
    documents cannot be read and none answers, it is asked again over the first of them.
    """
    readings = by_document(passages[:top_k])
    unread: list[Prompt] = []
    for index, document in enumerate(readings):
        shown = joined(document)
        prompt = step.inquiry.roles.reader.templates.answer(question, [shown])
        try:
            reading = await _read(step, prompt, as_role)
        except LimitReached as limit:
            step.stopped_by = limit.stopped_by
            # What is left for the question's own answer may be enough to read them once more.
            left = [*chain(*readings[index:])]
            await _pass_over(step, left, kept=as_role == "draft")
            await _pass_over(step, passages[top_k:])
            return True
        await _judge(step, document, reading)
        if reading.answer:
            await _pass_over(step, [*chain(*readings[index + 1 :]), *passages[top_k:]])
            counted = corrected_count(question, shown.text, reading.answer)
            if counted != reading.answer:
                step.flag("computed")
            await _settle(step, prompt, counted, as_role)
            return True
        if reading is NOTHING:
            unread.append(prompt)
    await _pass_over(step, passages[top_k:])
    if unread:
        await write_answer(step, unread[0], as_role)
    return bool(unread)


def by_document(passages: Sequence[Passage]) -> list[list[Passage]]:
    """Group the pieces of one document ("handbook#1", "handbook#2"), in the order of the first of
    each: what one piece says often needs the other one."""
    documents: dict[str, list[Passage]] = {}
    for passage in passages:
        documents.setdefault(_PIECE.sub("", passage.passage_id), []).append(passage)
    return list(documents.values())


def joined(pieces: Sequence[Passage]) -> PassageText:
    """Join the pieces of a document, in its order. A sentence that ends one piece and begins the
    next one (`service.retrieval.documents`) occurs once.
    """
    first, *later = sorted(pieces, key=_place)
    text = first.text
    for piece in later:
        begin = next((end for _, end in sentences(piece.text)), 0)
        repeated = text.endswith(piece.text[:begin].strip())
        text = f"{text} {piece.text[begin:] if repeated else piece.text}".strip()
    return PassageText(first.title, text)


def _place(piece: Passage) -> int:
    number = _PIECE.search(piece.passage_id)
    return int(number[0][1:]) if number else 0


async def _read(step: OpenStep, prompt: Prompt, as_role: TokenRole) -> AnswerReading:
    request = GenerationRequest(
        messages=(Message("user", prompt),), max_tokens=ANSWER_TOKENS, logprobs=step.weighed
    )
    reply = await step.ask("reader", request, final=as_role == "answer")
    reading = read_answer(reply.text, step.question or "")
    if reading.answer is not None and prompt.gives(reading.answer):
        return NOTHING
    return DECLINED if reading.declined else reading


async def _settle(step: OpenStep, prompt: Prompt, answer: str, as_role: TokenRole) -> None:
    step.answer = answer
    if step.cut:
        step.flag("shortened")
    await step.emit(Token(role=as_role, text=answer))
    await vote(step, prompt, as_role)


async def _judge(step: OpenStep, document: Sequence[Passage], reading: AnswerReading) -> None:
    """Judge the document: it is kept, unless the reader found no answer in it."""
    for passage in document:
        if reading.declined:
            await _emit(step, passage, relevant=False, kept=False, reason=DECLINING)
        elif reading.answer:
            await _emit(step, passage, relevant=True, kept=True, reason="relevant")
        else:
            await _emit(step, passage, relevant=None, kept=True, reason="reply could not be read")


async def _pass_over(step: OpenStep, passages: Sequence[Passage], *, kept: bool = False) -> None:
    for passage in passages:
        await _emit(step, passage, relevant=None, kept=kept, reason="not read")


async def _emit(
    step: OpenStep, passage: Passage, *, relevant: bool | None, kept: bool, reason: str
) -> None:
    event = Judgement(passage_id=passage.passage_id, relevant=relevant, kept=kept, reason=reason)
    await step.emit(event)
