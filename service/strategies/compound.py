"""Route `compound`: decompose, answer the parts in parallel, merge (METHODS.md §1.2, line 4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from service.answer.events import Decomposition, ThoughtWritten, Token, Withdraw
from service.answer.inquiry import OpenStep, Scope
from service.core.concurrency import gather
from service.core.errors import LimitReached
from service.prompts.templates import NO_ANSWER, UNANSWERED, Pair
from service.strategies.base import Loop, Outcome
from service.strategies.revelator.generation import PROSE_TOKENS, write_answer
from service.strategies.revelator.pronouns import resolve_pronouns
from service.strategies.revelator.roles import QuestionParts, decompose
from service.text.grounding import bears, is_yes_no

MAX_PARTS: Final = 8
BENCHMARK_JOINT: Final = " && "
PROSE_JOINT: Final = "; "
WORDS: Final = 6  # of an answer that a merge must contain verbatim


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
    scopes = scope.parts(len(parts.questions))
    each = zip(scopes, parts.questions, strict=True)
    outcomes = await gather([partial(_part, loop, own, part) for own, part in each])
    found = [own.supported for own in scopes]
    return await _merge(scope, question, parts.questions, outcomes, found)


async def _decompose(step: OpenStep, question: str) -> QuestionParts:
    """Return the parts, with pronouns replaced where another part determines them. If there is one
    part, or no call is left, it is the question as it was asked.
    """
    try:
        parts = await decompose(step, question, MAX_PARTS)
    except LimitReached:
        return QuestionParts(None, (question,))
    if len(parts.questions) < 2:
        return QuestionParts(parts.thought, (question,))
    named: list[Pair] = []
    for part in parts.questions:
        named.append(Pair(resolve_pronouns(part, named), None))
    return QuestionParts(parts.thought, tuple(pair.question for pair in named))


async def _part(loop: Loop, scope: Scope, question: str) -> Outcome:
    """Answer one part. A part that meets a limit ends without an answer."""
    try:
        return await loop.run(scope, question, "draft")
    except LimitReached as limit:
        return Outcome(None, limit.stopped_by)


async def _merge(
    scope: Scope,
    question: str,
    questions: Sequence[str],
    outcomes: Sequence[Outcome],
    supported: Sequence[bool],
) -> Outcome:
    """Merge the outcomes of the parts, of which some are `supported`."""
    pairs = [Pair(part, ended.answer) for part, ended in zip(questions, outcomes, strict=True)]
    limits = [ended.stopped_by for ended in outcomes if ended.stopped_by != "answer"]
    stopped_by = limits[-1] if limits else "answer"
    if not any(pair.answer for pair in pairs):
        return Outcome(None, stopped_by)
    step = scope.step("merge", question)
    await step.start()
    sound = [pair for pair, borne in zip(pairs, supported, strict=True) if borne]
    await _write_merge(step, question, pairs, sound)
    await step.end()
    return Outcome(step.answer, stopped_by if step.stopped_by == "answer" else step.stopped_by)


async def _write_merge(
    step: OpenStep, question: str, pairs: Sequence[Pair], sound: Sequence[Pair]
) -> None:
    """Run GEN_MERGE, in prose or with ` && ` between the parts as compound benchmarks score them
    (METHODS.md §6 #7). A merge that loses the answer of a `sound` part is replaced by the answers
    themselves. A small reader is not asked if a part has no answer, since its merge does not say
    which.
    """
    reader = step.inquiry.roles.reader
    templates, small = reader.templates, reader.generator.capabilities.small
    benchmark = step.inquiry.settings.answers.merge_style == "benchmark"
    partly = not all(pair.answer for pair in pairs)
    if (benchmark and not templates.has("merge_benchmark")) or (small and partly):
        step.answer = join_parts(pairs, BENCHMARK_JOINT) if benchmark else tell_parts(pairs)
        await step.emit(Token(role="answer", text=step.answer))
        return
    ask = templates.merge_benchmark if benchmark else templates.merge
    await write_answer(step, ask(question, pairs), "answer", PROSE_TOKENS)
    whole = has_all_parts(step.answer, pairs) if benchmark else not loses_part(step.answer, sound)
    if not whole:
        if step.answer:
            await step.emit(Withdraw(role="answer", reason="repair"))
        step.flag("repaired")
        step.answer = join_parts(pairs, BENCHMARK_JOINT if benchmark else PROSE_JOINT)
        await step.emit(Token(role="answer", text=step.answer))


def join_parts(pairs: Sequence[Pair], joint: str) -> str:
    """Join the parts' answers in order. A part without an answer says so."""
    return joint.join(pair.answer or NO_ANSWER for pair in pairs)


def tell_parts(pairs: Sequence[Pair]) -> str:
    """Return the answers there are, and the parts without one."""
    answers = PROSE_JOINT.join(pair.answer for pair in pairs if pair.answer)
    missing = " ".join(pair.question for pair in pairs if not pair.answer)
    return f"{answers}. {UNANSWERED} {missing}"


def loses_part(merged: str | None, pairs: Sequence[Pair]) -> bool:
    """Return whether a merged answer in prose contains the answer of one part and not that of
    another.

    Long answers, yes and no may be expressed in other words. A merged answer that contains no
    part's answer counts as a conclusion from them.
    """
    telling = [
        pair.answer
        for pair in pairs
        if pair.answer and len(pair.answer.split()) <= WORDS and not is_yes_no(pair.answer)
    ]
    contained = [bears(merged or "", answer) for answer in telling]
    return any(contained) and not all(contained)


def has_all_parts(merged: str | None, pairs: Sequence[Pair]) -> bool:
    """Whether a merged answer has something for every part, in one line."""
    parts = (merged or "").split(BENCHMARK_JOINT.strip())
    return len(parts) == len(pairs) and all(map(str.strip, parts)) and "\n" not in (merged or "")
