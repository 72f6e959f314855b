"""Route `complex`: refine, ANRAG, ending, until done (METHODS.md §1.2, lines 5 and following)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.answer.events import Judgement, Token
from service.answer.evidence import same_question
from service.answer.inquiry import OpenStep, Scope
from service.core.domain import Flag, StoppedBy
from service.core.errors import LimitReached
from service.prompts.templates import Pair
from service.strategies.anrag import retrieve_and_answer
from service.strategies.base import Outcome
from service.strategies.revelator.bridge import bridge_answer, substitute_answers
from service.strategies.revelator.clauses import last_clause
from service.strategies.revelator.comparison import comparison_answer
from service.strategies.revelator.generation import PROSE_TOKENS, write_answer
from service.strategies.revelator.pronouns import resolve_pronouns
from service.strategies.revelator.roles import RETRY_TEMPERATURE, judge_ending, refine

MAX_STEPS: Final = 5


class _Progress:
    """The state of the loop between steps: the pairs, the questions asked, and how it ends."""

    def __init__(self, max_steps: int, failed: str | None) -> None:
        self.max_steps = max_steps
        self.pairs: list[Pair] = []
        self.asked: set[str] = set()
        self.cycles = 0
        self.failed: list[Pair] = []
        if failed is not None:
            self.failed.append(Pair(failed, None))
            self.ask(failed)
        self.done = False
        self.unread = False
        self.flag: Flag | None = None
        self.stopped_by: StoppedBy = "answer"

    def may_go_on(self, exhausted: StoppedBy | None) -> bool:
        """Whether another step may start. If not, `stopped_by` is set."""
        if self.done or self.flag:
            return False
        if exhausted:
            self.stopped_by = exhausted
        elif self.cycles >= self.max_steps:
            self.stopped_by = "max_steps"
        return self.stopped_by == "answer"

    def repeats(self, question: str) -> bool:
        return same_question(question) in self.asked

    def ask(self, question: str) -> None:
        self.asked.add(same_question(question))
        self.cycles += 1


async def handle_complex(scope: Scope, question: str, failed: str | None = None) -> Outcome:
    """Answer a complex question. `failed` is given if another route has already searched this
    question without an acceptable answer: that search counts and is not repeated, and the model
    is not asked whether one is needed."""
    inquiry = scope.inquiry
    progress = _Progress(inquiry.request.max_steps or MAX_STEPS, failed)
    try:
        if "ending" not in inquiry.settings.hanrag.skip and failed is None:
            await _ask_before(scope, question, progress)
        while progress.may_go_on(inquiry.budget.exhausted()):
            await _cycle(scope, question, progress)
    except LimitReached as limit:
        progress.stopped_by = limit.stopped_by
    return await _finish(scope, question, progress)


async def _ask_before(scope: Scope, question: str, progress: _Progress) -> None:
    """ENDING on an empty history: called once before any retrieval."""
    step = scope.step("ending", question)
    await step.start()
    try:
        progress.done = await judge_ending(step, question, [])
        await step.emit(Judgement(ending=progress.done))
    except LimitReached as limit:
        progress.stopped_by = limit.stopped_by
    await step.end()


async def _cycle(scope: Scope, question: str, progress: _Progress) -> None:
    """Run one step: REFINE, ANRAG on the seed question, ENDING.

    Without evidence the question is refined once more (METHODS.md §6 #8), as a separate step.
    """
    step = scope.step("retrieve")
    opened = False
    try:
        step.question = await _next_seed(step, question, progress)
        opened = True
        await step.start()
        if step.question is not None:
            progress.ask(step.question)
            await _retrieve(step, question, step.question, progress)
    except LimitReached as limit:
        progress.stopped_by = limit.stopped_by
    if not opened:
        await step.start()
    await step.end()


async def _next_seed(step: OpenStep, question: str, progress: _Progress) -> str | None:
    """Return the seed question of this step; None if the refiner repeats itself (`refine_loop`)."""
    if "refine" in step.inquiry.settings.hanrag.skip:
        return question
    planned = _planned(question, progress) if _is_small(step) else None
    if planned is not None:
        return planned
    seed = resolve_pronouns(await refine(step, question, progress.pairs), progress.pairs)
    history = [*progress.failed, *progress.pairs]
    if progress.repeats(seed) and _last_failed(history):
        again = await refine(step, question, history, RETRY_TEMPERATURE)
        seed = resolve_pronouns(again, progress.pairs)
    if progress.repeats(seed):
        step.flag("refine_loop")
        progress.flag = "refine_loop"
        return None
    return seed


def _last_failed(pairs: Sequence[Pair]) -> bool:
    return bool(pairs) and pairs[-1].answer is None


async def _retrieve(step: OpenStep, question: str, seed: str, progress: _Progress) -> None:
    await retrieve_and_answer(step, seed, "draft")
    progress.unread = step.left_unread
    if step.stopped_by != "answer":
        progress.stopped_by = step.stopped_by
    if step.answer or step.stopped_by == "answer":
        progress.pairs.append(Pair(seed, step.answer))
    if step.stopped_by != "answer":
        return
    skipped = step.inquiry.settings.hanrag.skip
    if step.answer is None and "refine" not in skipped:
        return
    if "ending" not in skipped:
        progress.done = await _is_done(step, question, progress)
        await step.emit(Judgement(ending=progress.done))


async def _is_done(step: OpenStep, question: str, progress: _Progress) -> bool:
    """Run ENDING. A small model is not asked if the plan of a bridge decides it."""
    if _is_small(step):
        if bridge_answer(question, progress.pairs) is not None:
            return True
        if _planned(question, progress) is not None:
            return False
    return await judge_ending(step, question, progress.pairs)


def _planned(question: str, progress: _Progress) -> str | None:
    """Return the next question of a plan for a question that describes a thing by another one: its
    last clause, then the question with the answer in place of the description. None if that was
    asked.
    """
    clause = None if progress.pairs else last_clause(question)
    asked = clause.question if clause else substitute_answers(question, progress.pairs)
    return None if asked is None or progress.repeats(asked) else asked


def _is_small(step: OpenStep) -> bool:
    return step.inquiry.roles.revelator.generator.capabilities.small


async def _finish(scope: Scope, question: str, progress: _Progress) -> Outcome:
    """Run GEN_FINAL over the pairs. Nothing is written if the retrievals found nothing, or if the
    newest evidence could not be read any more, since the passages are then worth more than the
    pairs.
    """
    asked, found = bool(progress.cycles), any(pair.answer for pair in progress.pairs)
    limited = progress.stopped_by in ("deadline", "budget")
    if progress.unread or (not found and (asked or limited)):
        return Outcome(None, progress.stopped_by)
    step = scope.step("answer", question)
    await step.start()
    if not asked:
        step.flag("closed_book")
    await _conclude(step, question, progress.pairs)
    await step.end()
    stopped_by = progress.stopped_by if step.stopped_by == "answer" else step.stopped_by
    return Outcome(step.answer, stopped_by)


async def _conclude(step: OpenStep, question: str, pairs: Sequence[Pair]) -> None:
    """Run GEN_FINAL. What a small reader would guess is computed where possible."""
    reader, answers = step.inquiry.roles.reader, step.inquiry.settings.answers
    known = comparison_answer(question, pairs) or bridge_answer(question, pairs)
    if known and reader.generator.capabilities.small:
        step.answer = known
        step.flag("computed")
        await step.emit(Token(role="answer", text=known))
        return
    prompt = reader.templates.final(question, pairs, memory=answers.invites_memory)
    await write_answer(step, prompt, "answer", PROSE_TOKENS)
