"""Route `direct`: closed book, no retrieval (METHODS.md §1.2, line 2), and chats with the model
alone."""

from __future__ import annotations

from service.answer.events import RouteChosen, Stop, TokenRole
from service.answer.inquiry import OpenStep, Scope
from service.answer.request import PlainChat
from service.core.domain import StoppedBy
from service.core.errors import LimitReached
from service.engines.base import GenerationRequest, Message
from service.strategies.base import Outcome
from service.strategies.revelator.generation import PROSE_TOKENS, write_answer


async def handle_direct(scope: Scope, question: str) -> Outcome:
    step = scope.step("answer", question)
    await step.start()
    await answer_from_memory(step, question, "answer")
    await step.end()
    return Outcome(step.answer, step.stopped_by)


async def reply(scope: Scope, chat: PlainChat) -> None:
    """Emit the reply of the Revelator's model to the messages, from `route` to `stop`. At a limit
    of the question it is cut. Raises LimitReached if there is none by then, and EngineFailure.
    """
    await scope.inquiry.emit(RouteChosen(route="direct", loop="none", by="request"))
    step = scope.step("answer")
    await step.start()
    request = GenerationRequest(
        messages=tuple(Message(role, text) for role, text in chat.messages),
        max_tokens=chat.max_tokens,
        temperature=chat.temperature,
        seed=chat.seed,
        stop=chat.stop,
        json_schema=chat.form.json_schema if chat.form else None,
        from_client=True,
    )
    try:
        await step.write("revelator", request, "answer", final=True)
        stopped_by: StoppedBy = "budget" if step.cut else "answer"
    except LimitReached as limit:
        if not step.written:
            raise
        stopped_by = limit.stopped_by
    await step.end()
    await scope.inquiry.emit(Stop(stopped_by=stopped_by, answered=True, citations=[]))


async def answer_from_memory(step: OpenStep, question: str, as_role: TokenRole) -> None:
    """Run GEN_CLOSED in an open step, flagged `closed_book`; leaves the answer as `write_answer`
    does.
    """
    step.flag("closed_book")
    prompt = step.inquiry.roles.reader.templates.closed(question)
    await write_answer(step, prompt, as_role, PROSE_TOKENS, closed=True)
