"""READ: the only call of the model (METHODS.md §4.2, line 10; METHODS.md §4.3), or of the encoder
that reads in its place.

A template set with `efficientrag_read` asks for JSON; another one (the embedded model's) uses its
`answer` prompt. The official prompt invites an answer from memory, so it is also used if there is
nothing to read; in all other cases `closed` is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from service.answer.calls import Role
from service.answer.events import BaseEvent, Token, TokenRole, Withdraw
from service.answer.inquiry import OpenStep
from service.core.domain import Passage
from service.core.errors import LimitReached
from service.engines.base import GenerationRequest, Message
from service.prompts.quoting import quote
from service.prompts.templates import PassageText, Prompt, TemplateSet, passage_line
from service.strategies.revelator.generation import settle, write_answer
from service.strategies.revelator.parsing import (
    DECLINED,
    NOTHING,
    AnswerReading,
    ends_with,
    read_answer,
)
from service.strategies.revelator.parsing.salvage import (
    has_word,
    json_values,
    member,
    one_line,
    unwrap,
)
from service.strategies.revelator.reader import reader_of
from service.strategies.revelator.roles import RETRY_TEMPERATURE

TEMPLATE: Final = "efficientrag_read"
OFFICIAL: Final = "efficientrag_read_official"
READ_TOKENS: Final = 96
TOKENS_PER_BYTE: Final = 0.3  # generous: English prose has about 0.25
BLANK: Final = Passage("", "", "")
KEY: Final = "answer"
SCHEMA: Final = {
    "type": "object",
    "properties": {KEY: {"type": "string"}},
    "required": [KEY],
    "additionalProperties": False,
}
_OPENING = re.compile(rf'\A\s*(?:```(?:json)?\s*)?\{{\s*"{KEY}"\s*:\s*"')
_HALF_PAIR = re.compile("[\ud800-\udfff]")  # of an escape whose second half has not arrived
_WHOLE = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')


async def read(
    step: OpenStep,
    question: str,
    passages: Sequence[Passage],
    as_role: TokenRole,
    *,
    official: bool = False,
) -> None:
    """Stream the answer and store it in `step.answer`, or None if there is none.

    At a limit of the question, which `step.stopped_by` names, the answer is the text written so
    far.
    """
    if step.inquiry.roles.extractor is not None and passages and not official:
        await reader_of(step, question).read(passages, as_role)
        return
    templates = step.inquiry.roles.reader.templates
    prompt = _prompt(templates, question, passages, official)
    in_json = templates.has(TEMPLATE) and (official or bool(passages))
    if in_json:
        await _read_json(step, prompt, as_role, official)
    else:
        await write_answer(step, prompt, as_role, closed=not passages)


def room_for_passages(reader: Role, question: str, official: bool) -> int | None:
    """Return the bytes of passages that fit the model's context, or None if it is not known."""
    context = reader.generator.capabilities.context_tokens
    if context is None:
        return None
    frame = len(_prompt(reader.templates, question, (BLANK,), official).encode())
    return max(0, int((context - READ_TOKENS) / TOKENS_PER_BYTE) - frame)


def _prompt(
    templates: TemplateSet, question: str, passages: Sequence[Passage], official: bool
) -> Prompt:
    texts = [PassageText(passage.title, passage.text) for passage in passages]
    if templates.has(TEMPLATE) and (official or texts):
        name = OFFICIAL if official and templates.has(OFFICIAL) else TEMPLATE
        lines = "".join(f"{passage_line(text)}\n" for text in texts)
        return templates.render(name, question=quote(question), passages=lines)
    return templates.answer(question, texts) if texts else templates.closed(question)


async def _read_json(step: OpenStep, prompt: Prompt, as_role: TokenRole, official: bool) -> None:
    """Read the answer from JSON. Output without JSON is retried once; then its plain text is the
    answer, flagged `repaired`. An example of the prompt is retried once; then there is no answer.
    With the `official` prompt the example is flagged and stands."""
    stopped = echoed = False
    for last, temperature in enumerate((0.0, RETRY_TEMPERATURE)):
        request = GenerationRequest(
            messages=(Message("user", prompt),),
            max_tokens=READ_TOKENS,
            temperature=temperature,
            json_schema=SCHEMA,
        )
        field = AnswerField()
        try:
            await _write_field(step, request, field, as_role)
        except LimitReached as limit:
            stopped, step.stopped_by = True, limit.stopped_by
        shown = field.shown if stopped else ""
        take_text = stopped or bool(last)
        reading = _read_reply(field.text, shown, step.question or "", take_text=take_text)
        echoed = settle(step, prompt, reading, echoed, keeps=official, last=take_text)
        if step.cut and step.answer and ends_with(field.text, step.answer):
            step.flag("shortened")
        await _correct(step, field.shown, as_role)
        if step.answer or reading.declined or take_text:
            return


def _read_reply(text: str, shown: str, question: str, *, take_text: bool) -> AnswerReading:
    """Return the answer in the JSON, or the part of it that was `shown`. Other text counts only
    with `take_text`.
    """
    found = answer_in(text) or shown or None
    whole = read_answer(text, question)
    if whole.declined or (found and read_answer(found, question).declined):
        return DECLINED
    if found:
        return AnswerReading(found)
    return whole if take_text else NOTHING


async def _write_field(
    step: OpenStep, request: GenerationRequest, field: AnswerField, as_role: TokenRole
) -> None:
    """Make one call and emit the tokens of the answer in its JSON."""

    async def show(event: BaseEvent) -> None:
        if isinstance(event, Token):
            if fresh := field.feed(event.text):
                await step.emit(Token(role=as_role, text=fresh))
        elif field.restart():
            await step.emit(event)

    await step.write("reader", request, as_role, final=as_role == "answer", show=show)


async def _correct(step: OpenStep, shown: str, as_role: TokenRole) -> None:
    """Replace the shown text by the answer, if they differ."""
    if step.answer == (shown or None):
        return
    if step.answer:
        step.flag("repaired")
    if shown:
        await step.emit(Withdraw(role=as_role, reason="repair"))
    if step.answer:
        await step.emit(Token(role=as_role, text=step.answer))


class AnswerField:
    """Separates the answer from the JSON around it while the JSON is being written.

    White space is held back until a word follows, so that, for plain JSON, the joined pieces equal
    the result of `answer_in`.
    """

    def __init__(self) -> None:
        self.text = ""
        self.shown = ""

    def restart(self) -> bool:
        """Discard everything. Return whether some of it was shown."""
        shown, self.text, self.shown = self.shown, "", ""
        return bool(shown)

    def feed(self, text: str) -> str:
        """Take the next piece of the output. Return what can be shown of the answer."""
        self.text += text
        opening = _OPENING.match(self.text)
        if opening is None:
            return ""
        whole = _WHOLE.match(self.text, opening.end())
        written = json.loads(f'"{whole[0]}"', strict=False) if whole else ""
        fresh = str(written).strip()[len(self.shown) :]
        if _HALF_PAIR.search(fresh):
            return ""
        self.shown += fresh
        return fresh


def answer_in(text: str) -> str | None:
    """Return the answer in an output that has the key; None without the key or a value."""
    for value in json_values(unwrap(text)):
        found = member(value, {KEY}) if isinstance(value, dict) else None
        if isinstance(found, list):
            found = ", ".join(str(item) for item in found)
        if isinstance(found, bool):
            found = "yes" if found else "no"
        if isinstance(found, str | int | float) and has_word(str(found)):
            return one_line(str(found))
    return None
