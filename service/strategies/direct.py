"""Route `direct`: closed book, no retrieval (METHODS.md §1.2, line 2)."""

from __future__ import annotations

from service.answer.events import TokenRole
from service.answer.inquiry import OpenStep, Scope
from service.strategies.base import Outcome
from service.strategies.revelator.generation import PROSE_TOKENS, write_answer


async def handle_direct(scope: Scope, question: str) -> Outcome:
    step = scope.step("answer", question)
    await step.start()
    await answer_from_memory(step, question, "answer")
    await step.end()
    return Outcome(step.answer, step.stopped_by)


async def answer_from_memory(step: OpenStep, question: str, as_role: TokenRole) -> None:
    """Run GEN_CLOSED in an open step, flagged `closed_book`; leaves the answer as `write_answer`
    does.
    """
    step.flag("closed_book")
    prompt = step.inquiry.roles.reader.templates.closed(question)
    await write_answer(step, prompt, as_role, PROSE_TOKENS, closed=True)
