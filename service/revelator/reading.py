"""The reader's calls (GEN, GEN_CLOSED, GEN_MERGE, GEN_FINAL; methods §1.3, §6 #7), streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from service.concurrency import closing
from service.errors import DeadlineExceeded
from service.events import Token, TokenRole, Withdraw
from service.generation.base import GenerationRequest, Message
from service.inquiry import OpenStep
from service.revelator.parsing import parse_answer
from service.revelator.roles import RETRY_TEMPERATURE

ANSWER_TOKENS: Final = 64
PROSE_TOKENS: Final = 128


async def write_answer(
    step: OpenStep, prompt: str, as_role: TokenRole, max_tokens: int = ANSWER_TOKENS
) -> AsyncIterator[Token | Withdraw]:
    """Stream a reader's answer and leave it in `step.answer` (None: no text after one retry).

    Text that needs cleaning (a label before it, a fence around it) is withdrawn and written
    again clean, flagged `repaired`, so that the tokens that stand are the answer. When time runs
    out, what was written so far is the answer; DeadlineExceeded if nothing was.
    """
    final = as_role == "answer"
    for temperature in (0.0, RETRY_TEMPERATURE):
        request = GenerationRequest(
            messages=(Message("user", prompt),), max_tokens=max_tokens, temperature=temperature
        )
        pieces: list[str] = []
        late: DeadlineExceeded | None = None
        try:
            async with closing(step.write("reader", request, as_role, final=final)) as tokens:
                async for event in tokens:
                    pieces = [*pieces, event.text] if isinstance(event, Token) else []
                    yield event
        except DeadlineExceeded as error:
            late, step.stopped_by = error, "deadline"
        text = "".join(pieces)
        step.answer = parse_answer(text)
        if step.answer != text and pieces:
            step.flag("repaired")
            yield Withdraw(step=step.id, role=as_role, reason="repair")
            if step.answer:
                yield Token(step=step.id, role=as_role, text=step.answer)
        if step.answer:
            return
        if late:
            raise late
