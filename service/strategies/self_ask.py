"""The loop `self_ask` (METHODS.md §8.3): the model asks itself follow-up questions, which are
answered by search.

Each turn of the model opens a step: `retrieve` for a follow-up question, with its intermediate
answer as `answer`, or `answer` once the model concludes. A template set without `self_ask` uses the
forms of HANRAG's roles, which its model was trained on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from service.answer.events import RetrievedPassage, Token, TokenRole
from service.answer.evidence import same_question
from service.answer.inquiry import Inquiry, OpenStep, Scope
from service.core.domain import LoopName, StoppedBy
from service.core.errors import LimitReached
from service.engines.base import GenerationRequest, Message
from service.prompts.quoting import quote
from service.prompts.templates import NO_ANSWER, Pair, PassageText, Prompt
from service.strategies.base import Outcome
from service.strategies.collected import Collected, collect, leave_out
from service.strategies.last_resort import best_first
from service.strategies.revelator.generation import write_answer
from service.strategies.revelator.parsing import read_answer
from service.strategies.revelator.roles import (
    QUESTION_TOKENS,
    RETRY_TEMPERATURE,
    judge_ending,
    refine,
)

TEMPLATE: Final = "self_ask"
MAX_FOLLOW_UPS: Final = 5
TOP_K: Final = 5
INTERMEDIATE: Final = "Intermediate answer:"
FOLLOW_UP: Final = "Follow up:"
FINAL: Final = "So the final answer is:"
_INTERMEDIATE: Final = re.compile(r"\s*intermediate answer\s*:", re.IGNORECASE)
_FOLLOW_UP: Final = re.compile(r".*follow[- ]?up(?: question)?\s*:\s*(.*)", re.IGNORECASE)
_FINAL: Final = re.compile(r"(?:\A|.*[\n.])\s*so the final answer is\s*:[ \t]*(.*)", re.I | re.S)


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The model asks this."""

    question: str


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The model has concluded. `answer` is its conclusion; None if it must still be requested."""

    answer: str | None = None


Turn = FollowUp | Conclusion


def read_turn(text: str) -> Turn:
    """Return what a turn asks or concludes. A follow-up question is in the last line. If a turn has
    neither, the conclusion must be requested."""
    text = _INTERMEDIATE.split(text, maxsplit=1)[0].strip()
    last = text.rpartition("\n")[2].strip()
    if (asked := _FOLLOW_UP.match(last)) and asked[1].strip():
        return FollowUp(asked[1].strip())
    if (concluded := _FINAL.match(text)) and concluded[1].strip():
        line = concluded[1].strip().partition("\n")[0].strip()
        return Conclusion(line.removesuffix(".").rstrip() or None)
    return FollowUp(last) if last.endswith("?") else Conclusion()


def scratchpad(pairs: Sequence[Pair]) -> str:
    """Return the text after the question in the prompt: the follow-up questions so far, each with
    its intermediate answer."""
    if not pairs:
        return ""
    lines = [" Yes."]
    for pair in pairs:
        answer = quote(pair.answer or NO_ANSWER).removesuffix(".")
        lines += [f"{FOLLOW_UP} {quote(pair.question)}", f"{INTERMEDIATE} {answer}."]
    return "\n".join(lines)


class SelfAsk:
    """Ask follow-up questions, answer each by a search, until the model concludes."""

    name: LoopName = "self_ask"

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        """The request's `max_steps`, if given, is the maximum number of follow-up questions."""
        most = scope.inquiry.request.max_steps or MAX_FOLLOW_UPS
        asking = _Asking(scope, question, as_role, most)
        while not asking.ended:
            await _turn(asking)
        return Outcome(asking.answer, asking.stopped_by)


@dataclass(slots=True)
class _Asking:
    """A question in progress: its follow-up questions and their intermediate answers."""

    scope: Scope
    question: str
    as_role: TokenRole
    most: int
    pairs: list[Pair] = field(default_factory=list)
    answer: str | None = None
    ended: bool = False
    stopped_by: StoppedBy = "answer"

    @property
    def inquiry(self) -> Inquiry:
        return self.scope.inquiry

    @property
    def founded(self) -> bool:
        """Whether there is something to conclude from, or an answer from memory is allowed."""
        return any(pair.answer for pair in self.pairs) or not self.inquiry.abstains

    def asked(self, question: str) -> bool:
        return same_question(question) in {same_question(pair.question) for pair in self.pairs}

    def may_go_on(self) -> bool:
        """Whether the model may ask again. If not, `stopped_by` says why."""
        if why := self.inquiry.budget.exhausted():
            self.stopped_by = why
        elif len(self.pairs) >= self.most:
            self.stopped_by = "max_steps"
        return self.stopped_by == "answer"

    def prompt(self, ending: str = "") -> Prompt:
        templates = self.inquiry.roles.reader.templates
        history = scratchpad(self.pairs) + ending
        return templates.render(TEMPLATE, question=quote(self.question), history=history)


async def _turn(asking: _Asking) -> None:
    """Run one turn of the model, in the step that it opens. At a limit it concludes."""
    step = asking.scope.step("retrieve")
    turn: Turn = Conclusion()
    try:
        if asking.may_go_on():
            turn = await _ask(asking, step)
    except LimitReached as limit:
        asking.stopped_by = limit.stopped_by
    if isinstance(turn, FollowUp):
        await _answer_by_search(asking, step, turn.question)
    else:
        asking.ended = True
        step.kind, step.question = "answer", asking.question
        await step.start()
        await _conclude(asking, step, turn.answer)
    await step.end()


async def _ask(asking: _Asking, step: OpenStep) -> Turn:
    """Return the model's follow-up question or conclusion. A follow-up question that is an example
    of the prompt is requested once more; if it is again, or if it was asked before, only the
    conclusion is left.
    """
    if not asking.inquiry.roles.reader.templates.has(TEMPLATE):
        return await _ask_in_roles(asking, step)
    prompt = asking.prompt()
    for temperature in (0.0, RETRY_TEMPERATURE):
        request = GenerationRequest(
            messages=(Message("user", prompt),), max_tokens=QUESTION_TOKENS,
            temperature=temperature, stop=(f"\n{INTERMEDIATE}",),
        )  # fmt: skip
        completion = await step.ask("reader", request)
        turn = read_turn(completion.text)
        if not isinstance(turn, FollowUp):
            return turn
        example = prompt.gives(turn.question)
        cut = completion.finish == "length" and not turn.question.endswith("?")
        if not (example or cut):
            return _unless_repeated(asking, step, turn)
    step.flag("prompt_example" if example else "shortened")
    return Conclusion()


async def _ask_in_roles(asking: _Asking, step: OpenStep) -> Turn:
    """Use ENDING instead of "are follow up questions needed", and REFINE for the follow-up
    question.
    """
    if asking.pairs and await judge_ending(step, asking.question, asking.pairs):
        return Conclusion()
    question = await refine(step, asking.question, asking.pairs)
    return _unless_repeated(asking, step, FollowUp(question))


def _unless_repeated(asking: _Asking, step: OpenStep, turn: Turn) -> Turn:
    if isinstance(turn, FollowUp) and asking.asked(turn.question):
        step.flag("refine_loop")
        return Conclusion()
    return turn


async def _answer_by_search(asking: _Asking, step: OpenStep, question: str) -> None:
    """Search for the follow-up question, and read its intermediate answer from the passages."""
    step.question = question
    await step.start()
    try:
        reader, found = asking.inquiry.roles.reader, Collected()
        able = reader.generator.capabilities
        await collect(step, question, asking.inquiry.request.top_k or able.passages or TOP_K, found)
        shown = best_first(found.passages, able.passages, able.context_tokens)
        await leave_out(asking.inquiry, found, shown)
        if shown:
            prompt = reader.templates.answer(question, _texts(shown))
            await write_answer(step, prompt, "draft")
        elif not asking.inquiry.abstains:
            step.flag("closed_book")
            await write_answer(step, reader.templates.closed(question), "draft", closed=True)
    except LimitReached as limit:
        step.stopped_by = limit.stopped_by
    if step.stopped_by != "answer":
        asking.stopped_by = step.stopped_by
    asking.pairs.append(Pair(question, step.answer))


def _texts(passages: Sequence[RetrievedPassage]) -> list[PassageText]:
    return [PassageText(passage.title, passage.text) for passage in passages]


async def _conclude(asking: _Asking, step: OpenStep, stated: str | None) -> None:
    """Return the answer that the model stated, or the one it gives when asked to conclude. A
    refusal or an example of the prompt is no answer; without intermediate answers there is nothing
    to conclude from.
    """
    templates, as_role = asking.inquiry.roles.reader.templates, asking.as_role
    if stated is not None:
        reading = read_answer(stated, asking.question)
        if reading.declined:
            step.flag("declined")
            return
        if reading.answer and not asking.prompt().gives(reading.answer):
            if not asking.pairs:
                step.flag("closed_book")
            step.answer = asking.answer = reading.answer
            await step.emit(Token(role=as_role, text=reading.answer))
            return
    if not asking.founded:
        return
    if templates.has(TEMPLATE):
        prompt = asking.prompt(f"\n{FINAL}")
    else:
        memory = asking.inquiry.settings.answers.invites_memory
        prompt = templates.final(asking.question, asking.pairs, memory=memory)
    await write_answer(step, prompt, as_role)
    asking.answer = step.answer
    if step.stopped_by != "answer":
        asking.stopped_by = step.stopped_by
