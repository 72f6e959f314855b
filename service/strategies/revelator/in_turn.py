"""GEN over one passage at a time (METHODS.md §1.3), for models that other passages distract.

The reader is shown the best-ranked passage alone, and the next one only if it finds no answer
there: its declining is the judgement of relevance, and most questions need one or two calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.answer.events import Judgement, Token, TokenRole
from service.answer.inquiry import OpenStep
from service.core.domain import Passage
from service.core.errors import LimitReached
from service.engines.base import GenerationRequest, Message
from service.prompts.templates import PassageText, Prompt
from service.strategies.revelator.generation import ANSWER_TOKENS, vote, write_answer
from service.strategies.revelator.parsing import DECLINED, NOTHING, AnswerReading, read_answer


async def answer_in_turn(
    step: OpenStep, question: str, passages: Sequence[Passage], top_k: int, as_role: TokenRole
) -> bool:
    """Read at most the first `top_k` passages until one answers the question, judge each passage,
    and leave the answer in `step.answer`, as `write_answer` does.

    Returns whether a passage was relevant, or a limit of the question, told in `step.stopped_by`,
    ended the reading before that was known. If the reader's replies over some passages cannot be
    read and no passage answers, it is asked again over the first of them.
    """
    prompts = [_prompt(step, question, passage) for passage in passages[:top_k]]
    unread: list[int] = []
    for index, (passage, prompt) in enumerate(zip(passages, prompts, strict=False)):
        try:
            reading = await _read(step, prompt, as_role)
        except LimitReached as limit:
            step.stopped_by = limit.stopped_by
            await _pass_over(step, passages[index:], "not read")
            return True
        if reading.answer:
            await _settle(step, passage, prompt, reading.answer, as_role)
            await _pass_over(step, passages[index + 1 :], "not read")
            return True
        if reading is NOTHING:
            unread.append(index)
        await _judge(step, passage, reading)
    await _pass_over(step, passages[top_k:], f"beyond the first {top_k}")
    if unread:
        await write_answer(step, prompts[unread[0]], as_role)
    return bool(unread)


def _prompt(step: OpenStep, question: str, passage: Passage) -> Prompt:
    text = PassageText(passage.title, passage.text)
    return step.inquiry.roles.reader.templates.answer(question, [text])


async def _read(step: OpenStep, prompt: Prompt, as_role: TokenRole) -> AnswerReading:
    request = GenerationRequest(
        messages=(Message("user", prompt),), max_tokens=ANSWER_TOKENS, logprobs=step.weighed
    )
    reply = await step.ask("reader", request, final=as_role == "answer")
    reading = read_answer(reply.text, step.question or "")
    if reading.answer is not None and prompt.gives(reading.answer):
        return NOTHING
    return DECLINED if reading.declined else reading


async def _settle(
    step: OpenStep, passage: Passage, prompt: Prompt, answer: str, as_role: TokenRole
) -> None:
    await _emit(step, passage, relevant=True, kept=True, reason="relevant")
    step.answer = answer
    if step.cut:
        step.flag("shortened")
    await step.emit(Token(role=as_role, text=answer))
    await vote(step, prompt, as_role)


async def _judge(step: OpenStep, passage: Passage, reading: AnswerReading) -> None:
    """Tell of a passage without an answer; one whose reply could not be read is kept."""
    if reading.declined:
        await _emit(step, passage, relevant=False, kept=False, reason="the reader found no answer")
    else:
        await _emit(step, passage, relevant=None, kept=True, reason="reply could not be read")


async def _pass_over(step: OpenStep, passages: Sequence[Passage], reason: str) -> None:
    for passage in passages:
        await _emit(step, passage, relevant=None, kept=False, reason=reason)


async def _emit(
    step: OpenStep, passage: Passage, *, relevant: bool | None, kept: bool, reason: str
) -> None:
    event = Judgement(passage_id=passage.passage_id, relevant=relevant, kept=kept, reason=reason)
    await step.emit(event)
