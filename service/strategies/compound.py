"""Route `compound`: decompose, answer the parts in parallel, merge (METHODS.md §1.2, line 4)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from service.answer.events import (
    BaseEvent,
    Decomposition,
    StepEnd,
    Stop,
    ThoughtWritten,
    Token,
    Withdraw,
)
from service.answer.inquiry import OpenStep, Scope
from service.core.concurrency import closing, merge
from service.core.domain import StoppedBy
from service.core.errors import LimitReached
from service.prompts.templates import NO_ANSWER, Pair
from service.strategies.base import Loop
from service.strategies.revelator.reading import PROSE_TOKENS, write_answer
from service.strategies.revelator.roles import Decomposition as Parts
from service.strategies.revelator.roles import decompose

BENCHMARK_JOINT = " && "


async def handle_compound(scope: Scope, question: str, loop: Loop) -> AsyncIterator[BaseEvent]:
    step = scope.step("decompose", question)
    yield step.start()
    parts = await _decompose(step, question)
    if parts.thought:
        yield ThoughtWritten(step=step.id, text=parts.thought)
    yield Decomposition(step=step.id, questions=list(parts.questions))
    yield step.end()
    if len(parts.questions) == 1:
        async with closing(loop.run(scope, question, "answer")) as events:
            async for event in events:
                yield event
        return
    outcome = _Outcome(len(parts.questions))
    async with closing(_answer_parts(scope, parts.questions, loop, outcome)) as events:
        async for event in events:
            yield event
    async with closing(_merge(scope, question, parts.questions, outcome)) as events:
        async for event in events:
            yield event


async def _decompose(step: OpenStep, question: str) -> Parts:
    """The parts. Where there is one, or no call is left to ask for them, it is the question as it
    was asked, not as the model rewords it."""
    try:
        parts = await decompose(step, question, step.inquiry.settings.hanrag.max_parts)
    except LimitReached:
        return Parts(None, (question,))
    return parts if len(parts.questions) > 1 else Parts(parts.thought, (question,))


class _Outcome:
    """What the parts ended with, by index."""

    def __init__(self, count: int) -> None:
        self.answers: list[str | None] = [None] * count
        self.stopped_by: StoppedBy = "answer"

    def note(self, index: int, event: BaseEvent) -> None:
        if isinstance(event, StepEnd):
            self.answers[index] = event.answer
        elif isinstance(event, Stop):
            if not event.answered:
                self.answers[index] = None
            if event.stopped_by != "answer":
                self.stopped_by = event.stopped_by


async def _answer_parts(
    scope: Scope, questions: Sequence[str], loop: Loop, outcome: _Outcome
) -> AsyncIterator[BaseEvent]:
    """All parts at once; a part that meets a limit ends without an answer."""
    scopes = scope.parts(len(questions))
    streams = [
        _part(loop, part, question) for part, question in zip(scopes, questions, strict=True)
    ]
    async with closing(merge(streams)) as pairs:
        async for index, event in pairs:
            outcome.note(index, event)
            if not isinstance(event, Stop):
                yield event


async def _part(loop: Loop, scope: Scope, question: str) -> AsyncIterator[BaseEvent]:
    try:
        async with closing(loop.run(scope, question, "draft")) as events:
            async for event in events:
                yield event
    except LimitReached as limit:
        yield Stop(stopped_by=limit.stopped_by, answered=False)


async def _merge(
    scope: Scope, question: str, questions: Sequence[str], outcome: _Outcome
) -> AsyncIterator[BaseEvent]:
    pairs = [Pair(part, answer) for part, answer in zip(questions, outcome.answers, strict=True)]
    answers = [answer for answer in outcome.answers if answer]
    if not answers:
        yield Stop(stopped_by=outcome.stopped_by, answered=False)
        return
    step = scope.step("merge", question)
    yield step.start()
    async with closing(_write_merge(step, question, pairs)) as events:
        async for event in events:
            yield event
    yield step.end()
    stopped_by = outcome.stopped_by if step.stopped_by == "answer" else step.stopped_by
    yield Stop(step=step.id, stopped_by=stopped_by, answered=step.answer is not None)


async def _write_merge(
    step: OpenStep, question: str, pairs: Sequence[Pair]
) -> AsyncIterator[BaseEvent]:
    """GEN_MERGE, in prose or with ` && ` between the parts as compound benchmarks score them
    (METHODS.md §6 #7)."""
    templates = step.inquiry.roles.reader.templates
    benchmark = step.inquiry.settings.answers.merge_style == "benchmark"
    if benchmark and not templates.has("merge_benchmark"):
        step.answer = join_parts(pairs)
        yield Token(step=step.id, role="answer", text=step.answer)
        return
    ask = templates.merge_benchmark if benchmark else templates.merge
    async with closing(write_answer(step, ask(question, pairs), "answer", PROSE_TOKENS)) as events:
        async for event in events:
            yield event
    if benchmark and not has_all_parts(step.answer, pairs):
        if step.answer:
            yield Withdraw(step=step.id, role="answer", reason="repair")
        step.flag("repaired")
        step.answer = join_parts(pairs)
        yield Token(step=step.id, role="answer", text=step.answer)


def join_parts(pairs: Sequence[Pair]) -> str:
    """Join the parts' answers in order. A part without an answer says so."""
    return BENCHMARK_JOINT.join(pair.answer or NO_ANSWER for pair in pairs)


def has_all_parts(merged: str | None, pairs: Sequence[Pair]) -> bool:
    """Whether a merged answer has something for every part, in one line."""
    parts = (merged or "").split(BENCHMARK_JOINT.strip())
    return len(parts) == len(pairs) and all(map(str.strip, parts)) and "\n" not in (merged or "")
