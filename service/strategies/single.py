"""Route `single`: one ANRAG cycle, followed by `complex` if it failed.

The cycle is METHODS.md §1.2, line 3.

Escalation is our addition: the question continues as a complex one within the same budget, and the
answer that was shown is withdrawn. It is restored if the complex route finds none.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.answer.events import RouteChosen, Token, Withdraw
from service.answer.inquiry import Inquiry, OpenStep, Scope
from service.core.domain import Flag, RouteName
from service.core.settings import EscalationSettings
from service.strategies.anrag import retrieve_and_answer
from service.strategies.base import Outcome
from service.strategies.complex import MAX_STEPS, handle_complex

AFTER: RouteName = "complex"


async def handle_single(scope: Scope, question: str) -> Outcome:
    inquiry = scope.inquiry
    escalates = may_escalate(inquiry)
    step = scope.step("retrieve", question)
    step.weighed = escalates and inquiry.settings.escalation.below > 0
    await step.start()
    await retrieve_and_answer(step, question, "answer")
    await step.end()
    failed = fails_check(step.flags, step.probability, inquiry.settings.escalation)
    if not (escalates and failed) or inquiry.budget.exhausted():
        return Outcome(step.answer, step.stopped_by)
    return await _escalate(scope, step, question)


def may_escalate(inquiry: Inquiry) -> bool:
    """Whether settings and request allow another route and another step, which must not repeat the
    same search.
    """
    settings, request = inquiry.settings, inquiry.request
    wanted = {"never": (), "auto": ("auto",), "always": ("auto", "single")}
    return (
        request.route in wanted[settings.escalation.when]
        and AFTER in settings.routes.allowed
        and "refine" not in settings.hanrag.skip
        and (request.max_steps or MAX_STEPS) > 1
    )


def fails_check(
    flags: Sequence[Flag], probability: float | None, settings: EscalationSettings
) -> bool:
    """Whether one cycle was not enough: nothing relevant was found, there is no answer, or its
    probability is low. If the engine reports no probability, the answer passes."""
    if {"no_evidence", "declined"} & set(flags):
        return True
    return probability is not None and probability < settings.below


async def _escalate(scope: Scope, first: OpenStep, question: str) -> Outcome:
    if first.answer:
        await first.emit(Withdraw(role="answer", reason="restart"))
    step = scope.step("route", question)
    step.flag("escalated")
    await step.start()
    await step.emit(RouteChosen(route=AFTER, loop="anrag", by="escalation"))
    await step.end()
    outcome = await handle_complex(scope, question, failed=question)
    if outcome.answer or not first.answer:
        return outcome
    await first.emit(Token(role="answer", text=first.answer))
    return Outcome(first.answer, outcome.stopped_by)
