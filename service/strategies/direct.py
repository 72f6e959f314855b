"""Route `direct`: closed book, no retrieval (METHODS.md §1.2, line 2)."""

from __future__ import annotations

from service.answer.inquiry import Scope
from service.strategies.base import Outcome
from service.strategies.revelator.generation import PROSE_TOKENS, write_answer


async def handle_direct(scope: Scope, question: str) -> Outcome:
    step = scope.step("answer", question)
    await step.start()
    step.flag("closed_book")
    prompt = scope.inquiry.roles.reader.templates.closed(question)
    await write_answer(step, prompt, "answer", PROSE_TOKENS, closed=True)
    await step.end()
    return Outcome(step.answer, step.stopped_by)
