"""Route `compound`: decompose, answer the parts in parallel, merge (METHODS.md §1.2, line 4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from service.answer.events import Decomposition, ThoughtWritten, Token, Withdraw
from service.answer.inquiry import OpenStep, Scope
from service.core.concurrency import gather
from service.core.errors import LimitReached
from service.prompts.templates import NO_ANSWER, Pair
from service.strategies.base import Loop, Outcome
from service.strategies.revelator.generation import PROSE_TOKENS, write_answer
from service.strategies.revelator.roles import Decomposition as Parts
from service.strategies.revelator.roles import decompose

MAX_PARTS: Final = 8
BENCHMARK_JOINT: Final = " && "


async def handle_compound(scope: Scope, question: str, loop: Loop) -> Outcome:
    step = scope.step("decompose", question)
    await step.start()
    parts = await _decompose(step, question)
    if parts.thought:
        await step.emit(ThoughtWritten(text=parts.thought))
    await step.emit(Decomposition(questions=list(parts.questions)))
    await step.end()
    if len(parts.questions) == 1:
        return await loop.run(scope, question, "answer")
    scopes = zip(scope.parts(len(parts.questions)), parts.questions, strict=True)
    outcomes = await gather([partial(_part, loop, own, part) for own, part in scopes])
    return await _merge(scope, question, parts.questions, outcomes)


async def _decompose(step: OpenStep, question: str) -> Parts:
    """The parts. Where there is one, or no call is left to ask for them, it is the question as it
    was asked, not as the model rewords it."""
    try:
        parts = await decompose(step, question, MAX_PARTS)
    except LimitReached:
        return Parts(None, (question,))
    return parts if len(parts.questions) > 1 else Parts(parts.thought, (question,))


async def _part(loop: Loop, scope: Scope, question: str) -> Outcome:
    """Answer one part. A part that meets a limit ends without an answer."""
    try:
        return await loop.run(scope, question, "draft")
    except LimitReached as limit:
        return Outcome(None, limit.stopped_by)


async def _merge(
    scope: Scope, question: str, questions: Sequence[str], outcomes: Sequence[Outcome]
) -> Outcome:
    pairs = [Pair(part, ended.answer) for part, ended in zip(questions, outcomes, strict=True)]
    limits = [ended.stopped_by for ended in outcomes if ended.stopped_by != "answer"]
    stopped_by = limits[-1] if limits else "answer"
    if not any(pair.answer for pair in pairs):
        return Outcome(None, stopped_by)
    step = scope.step("merge", question)
    await step.start()
    await _write_merge(step, question, pairs)
    await step.end()
    return Outcome(step.answer, stopped_by if step.stopped_by == "answer" else step.stopped_by)


async def _write_merge(step: OpenStep, question: str, pairs: Sequence[Pair]) -> None:
    """GEN_MERGE, in prose or with ` && ` between the parts as compound benchmarks score them
    (METHODS.md §6 #7)."""
    templates = step.inquiry.roles.reader.templates
    benchmark = step.inquiry.settings.answers.merge_style == "benchmark"
    if benchmark and not templates.has("merge_benchmark"):
        step.answer = join_parts(pairs)
        await step.emit(Token(role="answer", text=step.answer))
        return
    ask = templates.merge_benchmark if benchmark else templates.merge
    await write_answer(step, ask(question, pairs), "answer", PROSE_TOKENS)
    if benchmark and not has_all_parts(step.answer, pairs):
        if step.answer:
            await step.emit(Withdraw(role="answer", reason="repair"))
        step.flag("repaired")
        step.answer = join_parts(pairs)
        await step.emit(Token(role="answer", text=step.answer))


def join_parts(pairs: Sequence[Pair]) -> str:
    """Join the parts' answers in order. A part without an answer says so."""
    return BENCHMARK_JOINT.join(pair.answer or NO_ANSWER for pair in pairs)


def has_all_parts(merged: str | None, pairs: Sequence[Pair]) -> bool:
    """Whether a merged answer has something for every part, in one line."""
    parts = (merged or "").split(BENCHMARK_JOINT.strip())
    return len(parts) == len(pairs) and all(map(str.strip, parts)) and "\n" not in (merged or "")
