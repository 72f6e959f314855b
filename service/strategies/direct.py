"""Route `direct`: closed book, no retrieval (METHODS.md §1.2, line 2)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from service.answer.events import BaseEvent, Stop
from service.answer.inquiry import Scope
from service.core.concurrency import closing
from service.strategies.revelator.reading import PROSE_TOKENS, write_answer


async def handle_direct(scope: Scope, question: str) -> AsyncIterator[BaseEvent]:
    step = scope.step("answer", question)
    yield step.start()
    step.flag("closed_book")
    prompt = scope.inquiry.roles.reader.templates.closed(question)
    async with closing(write_answer(step, prompt, "answer", PROSE_TOKENS, closed=True)) as events:
        async for event in events:
            yield event
    yield step.end()
    yield Stop(step=step.id, stopped_by=step.stopped_by, answered=step.answer is not None)
