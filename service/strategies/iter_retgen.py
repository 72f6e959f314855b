"""The loop `iter_retgen` (METHODS.md §8.2): each generation improves the next retrieval.

Each iteration is a step `retrieve`: `query` is the question with the previous generation, `thought`
the generation from the passages of this retrieval alone, and `answer` its conclusion. The answer of
the last iteration is that of the question.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from service.answer.calls import Roles
from service.answer.events import ThoughtWritten, Token, TokenRole
from service.answer.inquiry import Inquiry, OpenStep, Scope
from service.core.domain import LoopName, StoppedBy
from service.core.errors import LimitReached
from service.core.settings import Settings
from service.engines.base import GenerationRequest
from service.strategies.base import Outcome
from service.strategies.collected import (
    Collected,
    answer_from_collected,
    borrows,
    collect,
    leave_out,
    with_passages,
)
from service.strategies.drafting.chain import cut_overrun, read_answer
from service.strategies.drafting.layout import ROLES, Layout, lacking_template, opening_layout
from service.strategies.revelator import parsing

ITERATIONS: Final = 3
TOP_K: Final = 5
GENERATION_TOKENS: Final = 128


class IterRetgen:
    """Retrieve and generate in turn, T times; each query has the generation before it."""

    name: LoopName = "iter_retgen"

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        """Return what this deployment lacks for the loop, or None if it can run."""
        return lacking_template(roles.reader.templates, ROLES)

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        """T is the request's `max_steps`, if given."""
        inquiry = scope.inquiry
        templates = inquiry.roles.reader.templates
        run = _Run(
            scope, question, as_role,
            opening_layout(templates, question.strip(), may_decline=True),
            most=inquiry.request.max_steps or ITERATIONS,
        )  # fmt: skip
        while run.may_go_on():
            await _iterate(run)
        return await _end(run)


@dataclass(slots=True)
class _Run:
    """A question in progress. `text` is the newest generation, `answer` its conclusion, and
    `collected` the passages that it was written from. `declined`: it concludes that there is no
    answer.
    """

    scope: Scope
    question: str
    as_role: TokenRole
    layout: Layout
    most: int
    done: int = 0
    query: str = ""
    text: str = ""
    answer: str | None = None
    declined: bool = False
    shown: bool = False
    collected: Collected = field(default_factory=Collected)
    stopped_by: StoppedBy = "answer"

    @property
    def inquiry(self) -> Inquiry:
        return self.scope.inquiry

    def may_go_on(self) -> bool:
        if self.done >= self.most or self.stopped_by != "answer":
            return False
        if next_query(self.question, self.text) == self.query:
            return False  # the same search, and after it the same generation
        if why := self.inquiry.budget.exhausted():
            self.stopped_by = why
        return why is None


def next_query(question: str, generation: str) -> str:
    """Return the question, followed by the newest generation in one line if there is one."""
    return " ".join([question.strip(), *generation.split()])


async def _iterate(run: _Run) -> None:
    """Retrieve with the previous generation, and generate from the result."""
    step = run.scope.step("retrieve", run.question)
    await step.start()
    run.done += 1
    run.query = next_query(run.question, run.text)
    try:
        found = Collected()
        able = run.inquiry.roles.reader.generator.capabilities
        top_k = run.inquiry.request.top_k or able.passages or TOP_K
        await collect(step, run.query, top_k, found)
        if found.found or not run.inquiry.abstains:
            run.collected = found
            await _generate(run, step)
    except LimitReached as limit:
        run.stopped_by = limit.stopped_by
    await step.end()


async def _generate(run: _Run, step: OpenStep) -> None:
    """Write one chain of thought over the passages. Text copied from a demonstration is neither
    used as an answer nor searched for.
    """
    reader, last = run.inquiry.roles.reader, run.done == run.most
    layout, shown = with_passages(run.layout, run.collected, reader, GENERATION_TOKENS)
    await leave_out(run.inquiry, run.collected, shown)
    request = GenerationRequest(
        prompt=layout.prompt().text, max_tokens=GENERATION_TOKENS, stop=("\n",)
    )
    final = last and run.as_role == "answer"
    text = cut_overrun((await step.ask("reader", request, final=final)).text)
    answer = read_answer(text)
    run.declined = bool(answer) and parsing.read_answer(answer or "", run.question).declined
    if not run.declined and borrows(layout, run.question, answer or text):
        step.flag("prompt_example")
        text, answer = "", None
    run.text, run.answer = text, None if run.declined else answer
    if text:
        await step.emit(ThoughtWritten(text=text))
    if run.declined:
        step.flag("declined")
    step.answer = run.answer
    if last and run.answer:
        run.shown = True
        await step.emit(Token(role=run.as_role, text=run.answer))


async def _end(run: _Run) -> Outcome:
    """Return the newest answer. If the last generation has none, a reader answers from its
    passages, unless the generation stated that there is none.
    """
    if run.shown:
        return Outcome(run.answer, run.stopped_by)
    if run.answer is None and run.declined:
        return Outcome(None, run.stopped_by)
    if run.answer is None:
        return await answer_from_collected(
            run.scope, run.question, run.collected, run.as_role, run.stopped_by
        )
    step = run.scope.step("answer", run.question)
    await step.start()
    step.answer = run.answer
    await step.emit(Token(role=run.as_role, text=run.answer))
    await step.end()
    return Outcome(run.answer, run.stopped_by)
