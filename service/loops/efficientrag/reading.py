"""READ: the one call of the model (methods §4.2, line 10; §4.3).

A template set with `efficientrag_read` is asked for JSON; another one (the embedded model's) by
its `answer` prompt, or by `closed` where there is nothing to read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from service.calling import Role
from service.concurrency import closing
from service.domain import Passage
from service.errors import DeadlineExceeded
from service.events import BaseEvent, Token, TokenRole, Withdraw
from service.generation.base import GenerationRequest, Message
from service.inquiry import OpenStep
from service.loops.efficientrag.answer_field import SCHEMA, AnswerField, read_answer
from service.prompting.quoting import quote
from service.prompting.templates import PassageText, TemplateSet, passage_line
from service.revelator.parsing import parse_answer
from service.revelator.reading import write_answer
from service.revelator.roles import RETRY_TEMPERATURE

TEMPLATE: Final = "efficientrag_read"
READ_TOKENS: Final = 96
TOKENS_PER_BYTE: Final = 0.3  # more than of English prose, to be safe


async def read(
    step: OpenStep, question: str, passages: Sequence[Passage], as_role: TokenRole
) -> AsyncIterator[BaseEvent]:
    """Stream the answer and leave it in `step.answer`, None where none can be had.

    When time runs out, what was written so far is the answer; DeadlineExceeded if nothing was.
    """
    templates = step.inquiry.roles.reader.templates
    prompt = _prompt(templates, question, passages)
    in_json = templates.has(TEMPLATE)
    events = (_read_json if in_json else write_answer)(step, prompt, as_role)
    async with closing(events) as stream:
        async for event in stream:
            yield event


def room_for_passages(reader: Role, question: str) -> int | None:
    """Bytes of passages that fit the model's context; None where it is not known."""
    context = reader.generator.capabilities.context_tokens
    if context is None:
        return None
    frame = len(_prompt(reader.templates, question, ()).encode())
    return max(0, int((context - READ_TOKENS) / TOKENS_PER_BYTE) - frame)


def _prompt(templates: TemplateSet, question: str, passages: Sequence[Passage]) -> str:
    texts = [PassageText(passage.title, passage.text) for passage in passages]
    if templates.has(TEMPLATE):
        lines = "".join(f"{passage_line(text)}\n" for text in texts)
        return templates.render(TEMPLATE, question=quote(question), passages=lines)
    return templates.answer(question, texts) if texts else templates.closed(question)


async def _read_json(
    step: OpenStep, prompt: str, as_role: TokenRole
) -> AsyncIterator[Token | Withdraw]:
    """One retry where the output is no JSON with the key; then its plain text, flagged
    `repaired`, is the answer."""
    late: DeadlineExceeded | None = None
    for last, temperature in enumerate((0.0, RETRY_TEMPERATURE)):
        request = GenerationRequest(
            messages=(Message("user", prompt),),
            max_tokens=READ_TOKENS,
            temperature=temperature,
            json_schema=SCHEMA,
        )
        field = AnswerField()
        try:
            async with closing(_tokens(step, request, field, as_role)) as tokens:
                async for token in tokens:
                    yield token
        except DeadlineExceeded as error:
            late, step.stopped_by = error, "deadline"
        step.answer = read_answer(field.text) or (late and field.shown) or None
        if step.answer is None and (last or late):
            step.answer = parse_answer(field.text)
        for event in _settled(step, field.shown, as_role):
            yield event
        if step.answer:
            return
        if late:
            raise late


async def _tokens(
    step: OpenStep, request: GenerationRequest, field: AnswerField, as_role: TokenRole
) -> AsyncIterator[Token | Withdraw]:
    """The answer's tokens out of one call."""
    final = as_role == "answer"
    async with closing(step.write("reader", request, as_role, final=final)) as events:
        async for event in events:
            if isinstance(event, Withdraw):
                if field.restart():
                    yield event
            elif fresh := field.feed(event.text):
                yield Token(step=step.id, role=as_role, text=fresh)


def _settled(step: OpenStep, shown: str, as_role: TokenRole) -> list[Token | Withdraw]:
    """What was shown is made the answer."""
    if step.answer == (shown or None):
        return []
    step.flag("repaired")
    events: list[Token | Withdraw] = []
    if shown:
        events.append(Withdraw(step=step.id, role=as_role, reason="repair"))
    if step.answer:
        events.append(Token(step=step.id, role=as_role, text=step.answer))
    return events
