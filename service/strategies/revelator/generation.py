"""The reader's calls (GEN, GEN_CLOSED, GEN_MERGE, GEN_FINAL; METHODS.md §1.3, §6 #7), streamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from service.answer.events import Token, TokenRole, Withdraw
from service.answer.inquiry import OpenStep
from service.core.concurrency import gather
from service.core.errors import LimitReached
from service.engines.base import GenerationRequest, Message
from service.prompts.templates import Prompt
from service.strategies.revelator.parsing import AnswerReading, ends_with, read_answer
from service.strategies.revelator.roles import RETRY_TEMPERATURE
from service.text.words import normal_words

ANSWER_TOKENS: Final = 64
PROSE_TOKENS: Final = 128
SAMPLE_TEMPERATURE: Final = 0.7


async def write_answer(
    step: OpenStep,
    prompt: Prompt,
    as_role: TokenRole,
    max_tokens: int = ANSWER_TOKENS,
    *,
    closed: bool = False,
) -> None:
    """Stream a reader's answer and leave it in `step.answer`, as `_write` does. If the request asks
    for `samples`, the question's answer is decided by vote, except for one that is `weighed`,
    because its probability decides on it.
    """
    await _write(step, prompt, as_role, max_tokens, closed=closed)
    await vote(step, prompt, as_role, max_tokens)


async def _write(
    step: OpenStep, prompt: Prompt, as_role: TokenRole, max_tokens: int, *, closed: bool
) -> None:
    """Stream a reader's answer and leave it in `step.answer`.

    It is None if there was no text after one retry, and if the reader declined to answer, which is
    flagged `declined`; such a reply is withdrawn completely. So is an example of the prompt, which
    is flagged `prompt_example` if it is repeated; with `closed` it is flagged and kept, since an
    answer from memory is found nowhere else.

    Text that needs cleaning (a label before it, a fence around it) is withdrawn and written again
    in clean form, flagged `repaired`, so that the remaining tokens are the answer. At a limit of
    the question, given in `step.stopped_by`, the answer is the text written so far. An answer that
    is cut is flagged `shortened`.
    """
    final = as_role == "answer"
    echoed = False
    for again, temperature in enumerate((0.0, RETRY_TEMPERATURE)):
        request = GenerationRequest(
            messages=(Message("user", prompt),), max_tokens=max_tokens, temperature=temperature
        )
        stopped = False
        try:
            await step.write("reader", request, as_role, final=final)
        except LimitReached as limit:
            stopped, step.stopped_by = True, limit.stopped_by
        text = step.written
        reading = read_answer(text, step.question or "", parts=step.kind == "merge")
        last = stopped or bool(again)
        echoed = settle(step, prompt, reading, echoed, keeps=closed, last=last)
        if step.cut and step.answer and ends_with(text, step.answer):
            step.flag("shortened")
        if step.answer != text and text:
            if step.answer:
                step.flag("repaired")
            await step.emit(Withdraw(role=as_role, reason="repair"))
            if step.answer:
                await step.emit(Token(role=as_role, text=step.answer))
        if step.answer or reading.declined or last:
            return


def settle(
    step: OpenStep, prompt: Prompt, reading: AnswerReading, echoed: bool, *, keeps: bool, last: bool
) -> bool:
    """Leave in `step.answer` the valid part of a reply, and flag the step if there is none.

    Returns whether this reply or one before it (`echoed`) was an example of the prompt; with
    `keeps` it is accepted nevertheless.
    """
    example = reading.answer is not None and prompt.gives(reading.answer)
    step.answer = reading.answer if keeps or not example else None
    echoed = echoed or example
    if reading.declined:
        step.flag("declined")
    elif (keeps and example) or (last and echoed and not step.answer):
        step.flag("prompt_example")
    return echoed


async def vote(
    step: OpenStep, prompt: Prompt, as_role: TokenRole, max_tokens: int = ANSWER_TOKENS
) -> None:
    """Run self-consistency (METHODS.md §7.7) if the request asks for it: leave the answer that most
    of `step.answer` and further samples agree on, flagged `outvoted` if it is another one. At a
    limit of the question, the samples made so far vote.
    """
    samples, first = (step.inquiry.request.samples or 1) - 1, step.answer
    if samples < 1 or as_role != "answer" or not first or step.weighed:
        return
    requests = [
        GenerationRequest(
            messages=(Message("user", prompt),), max_tokens=max_tokens,
            temperature=SAMPLE_TEMPERATURE, seed=seed,
        )
        for seed in range(1, samples + 1)
    ]  # fmt: skip
    drawn = await gather([partial(_sampled, step, prompt, request) for request in requests])
    limits = [each for each in drawn if isinstance(each, LimitReached)]
    if limits:
        step.stopped_by = limits[0].stopped_by
    chosen = majority([first, *(each for each in drawn if isinstance(each, str))])
    if chosen != first:
        step.answer = chosen
        step.flag("outvoted")
        await step.emit(Withdraw(role="answer", reason="repair"))
        await step.emit(Token(role="answer", text=chosen))


async def _sampled(
    step: OpenStep, prompt: Prompt, request: GenerationRequest
) -> str | LimitReached | None:
    """Return an answer, None if there is none that may vote, or the limit that was reached."""
    try:
        completion = await step.ask("reader", request)
    except LimitReached as limit:
        return limit
    answer = read_answer(completion.text, step.question or "", parts=step.kind == "merge").answer
    cut = completion.finish == "length"
    return None if answer is None or cut or prompt.gives(answer) else answer


def majority(answers: Sequence[str]) -> str:
    """Return the most frequent answer, the earliest of several, regardless of how its words,
    numbers and dates are written.
    """
    forms = [normal_words(answer) for answer in answers]
    counted = Counter(forms)  # in the order of their first occurrence, which decides among equals
    return answers[forms.index(max(counted, key=counted.__getitem__))]
