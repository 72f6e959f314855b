"""Answer a question: choose the route, run its handler, number the events and fold them into the
body."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import structlog

from service.answer.events import (
    AnswerReady,
    BaseEvent,
    Done,
    Failed,
    RouteChosen,
    Start,
    StepEnd,
    Stop,
    Token,
    Withdraw,
)
from service.answer.evidence import StepState, same_question
from service.answer.fold import Fold
from service.answer.inquiry import Emit, Inquiry, Scope
from service.answer.request import OutputForm
from service.core.domain import (
    Citation,
    LoopName,
    RequestLoop,
    RouteName,
    Timing,
)
from service.core.errors import DeadlineExceeded, LimitReached, RevelatorError
from service.core.native import is_failure
from service.core.private import problem_of
from service.strategies.anrag import answer_from, search_once
from service.strategies.conversation import condense, shorten
from service.strategies.planner import planner_of
from service.strategies.registry import LOOPS, handle
from service.strategies.routes import reply, wants_survey
from service.strategies.rules import asks_broadly
from service.strategies.structured import structured

log = structlog.get_logger(__name__)


async def answer_question(inquiry: Inquiry, emit: Emit, queued_s: float = 0.0) -> None:
    """Emit all events of one question, from `start` to `done`, with `answer` or `error` exactly
    once.

    `queued_s` is the time it waited for admission. Expected and unexpected errors alike end with
    `error` and `done`; cancelling the task cancels the question.
    """
    inquiry.emit = emit = _numbered(inquiry, emit)
    await emit(Start(id=inquiry.id, question=inquiry.question))
    try:
        await _answer(inquiry)
        await emit(AnswerReady(body=inquiry.fold.answer(_timing(inquiry, queued_s))))
    except RevelatorError as error:
        await emit(Failed(problem=problem_of(error, inquiry.id)))
    except BaseException as error:
        if not is_failure(error):
            raise
        log.exception("question failed", id=inquiry.id)
        await emit(Failed(problem=problem_of(RevelatorError(_UNEXPECTED), inquiry.id)))
    await emit(Done())


# What an encoder that copies answers out of passages says of a question for a summary.
ONE_FACT = (
    "The model that reads here copies answers out of passages, and writes no summaries: ask for "
    "one fact, a list or a reason, or let a language model read."
)
_UNEXPECTED = "An unexpected error occurred. It was logged under this request_id; please report it."


def _numbered(inquiry: Inquiry, emit: Emit) -> Emit:
    """Return an `emit` that gives events their `seq` and, where unset, `ms` and the newest `step`,
    flags steps whose answer nothing supports, and feeds the fold and the trace."""
    numbers, fold, trace = count(), inquiry.fold, inquiry.trace

    async def numbered(event: BaseEvent) -> None:
        if isinstance(event, StepEnd) and fold.route != "direct":
            _ground(event, inquiry)
        event.seq = next(numbers)
        event.ms = event.ms or round(inquiry.budget.elapsed_s * 1000, 3)
        if event.step is None and fold.steps:
            event.step = fold.steps[-1].id
        fold.add(event)
        if trace is not None:
            trace.see(event)
        await emit(event)

    return numbered


def _ground(end: StepEnd, inquiry: Inquiry) -> None:
    """Flag the end of a step whose answer nothing supports."""
    flag = inquiry.fold.missing_support(end)
    if flag is not None:
        memory = inquiry.settings.answers.invites_memory
        end.flags = [*end.flags, "closed_book" if memory else flag]
        inquiry.unsupported.add(end.step or "")


async def _answer(inquiry: Inquiry) -> None:
    """Shorten the question, condense the conversation, route, run the handler, then end with the
    answer text, citations and `stop`.
    """
    scope, fold = Scope(inquiry), inquiry.fold
    if inquiry.request.plain:
        return await reply(scope, inquiry.request.plain)
    await shorten(scope)
    await condense(scope)
    with inquiry.routing_time:
        await _route(inquiry, scope)
    with scope.limited():
        await handle(scope, fold.route or "single", fold.loop or "anrag")
    await _last_resort(scope)
    return await _end(scope)


async def _last_resort(scope: Scope) -> None:
    """Answer if the handler wrote no answer: at a limit of the question from the passages kept by
    then; if a loop kept none, by one search for the question itself, unless that was made. With
    `answers.require_search`, an answer before any search is none.
    """
    inquiry, fold = scope.inquiry, scope.inquiry.fold
    final = fold.final
    if final is not None and inquiry.settings.answers.require_search and not fold.searched:
        await inquiry.emit(Withdraw(step=final.id, role="answer", reason="unsupported"))
        final = None
    if final is not None or not inquiry.budget.may_answer or fold.loop == "no_retrieval":
        return
    kept, stopped_by = fold.kept, scope.stopped_by
    resorts = inquiry.last_resort and fold.route != "compound"
    if kept and stopped_by in ("deadline", "budget"):
        await answer_from(scope, kept)
        scope.stopped_by = stopped_by  # the limit that ended the search, not the reading
    elif not kept and resorts and _may_find_more(inquiry):
        await search_once(scope)


def _may_find_more(inquiry: Inquiry) -> bool:
    """Whether ANRAG may find what a loop that kept no passage did not: the question itself was not
    searched, or only the labeler of EfficientRAG, which rejects more than the model does, judged
    the result.
    """
    fold, asked = inquiry.fold, same_question(inquiry.question)
    if asked not in [same_question(query) for step in fold.steps for query in step.queries]:
        return True
    labelled = fold.loop == "efficientrag" and any(step.passages for step in fold.steps)
    return labelled and inquiry.request.conditions.efficientrag == "service"


def _withheld(step: StepState, inquiry: Inquiry) -> bool:
    """Whether the step's answer is withheld: by the settings, which do not withhold a survey, since
    no passage contains one; or because it is no summary."""
    settings, fold = inquiry.settings.answers, inquiry.fold
    if _from_memory(fold) or (fold.surveys and step.kind != "answer"):
        return False
    if (fold.kept_nothing and inquiry.abstains) or _is_no_summary(inquiry):
        return True
    from_memory = "closed_book" in step.flags and inquiry.abstains
    abstains = settings.unsupported == "abstain" or (
        settings.unsupported is None and inquiry.roles.extractor is not None
    )
    return abstains and ("unsupported" in step.flags or from_memory)


def _from_memory(fold: Fold) -> bool:
    """Whether the answer was to come from the model's own knowledge, by the route, or by a loop
    that works without searches.
    """
    if fold.route == "direct":
        return True
    return not fold.searched and fold.loop is not None and LOOPS[fold.loop].from_memory


def _is_no_summary(inquiry: Inquiry) -> bool:
    """Whether a summary is asked of an encoder, which copies single answers."""
    return inquiry.roles.extractor is not None and asks_broadly(inquiry.question)


async def _into_form(scope: Scope, form: OutputForm, cited: Sequence[Citation]) -> None:
    """Replace the answer by JSON."""
    fold = scope.inquiry.fold
    first = {citation.passage_id for citation in cited}
    passages = sorted(fold.kept, key=lambda passage: passage.passage_id not in first)
    async with scope.step("answer", needed=True) as step:
        written = await structured(step, fold.answer_text, passages, form)
        for earlier in fold.steps:
            if earlier.answer_tokens:
                await scope.inquiry.emit(Withdraw(step=earlier.id, role="answer", reason="repair"))
        await step.emit(Token(role="answer", text=written))


async def _end(scope: Scope) -> None:
    """`stop` with citations, after the answer text where no handler wrote one.

    An answer that the settings withhold is withdrawn. At a limit of the question the newest
    sub-answer is the answer; out of time without any, DeadlineExceeded is raised, unless the
    passages were judged and held no evidence.
    """
    inquiry, fold, stopped_by = scope.inquiry, scope.inquiry.fold, scope.stopped_by
    settings, final = inquiry.settings.answers, fold.final
    if final is None and stopped_by in ("deadline", "budget"):
        final = fold.last_sub_answer
        if final is not None:
            await inquiry.emit(Token(step=final.id, role="answer", text=final.answer or ""))
        elif stopped_by == "deadline" and not fold.without_evidence:
            raise DeadlineExceeded(
                "The time limit was reached before there was an answer. Allow a longer timeout_s."
            )
    answered = final is not None and not _withheld(final, inquiry)
    supported = fold.supported and answered
    confidence = fold.confidence if answered else None
    if final is not None and not answered:
        await inquiry.emit(Withdraw(step=final.id, role="answer", reason="unsupported"))
    if not answered:
        advice = f" {ONE_FACT}" if _is_no_summary(inquiry) else ""
        text = f"{settings.no_answer_text}{advice}"
        await inquiry.emit(Token(role="answer", text=text))
    cited = fold.citations() if answered else []
    if answered and inquiry.request.form:
        await _into_form(scope, inquiry.request.form, cited)
    stop = Stop(
        stopped_by=stopped_by,
        answered=answered,
        supported=supported,
        confidence=confidence,
        citations=cited,
    )
    await inquiry.emit(stop)


async def _route(inquiry: Inquiry, scope: Scope) -> None:
    """Choose the route and emit `route`: by the request, the rule for broad questions, a classifier
    or the Revelator's ROUTE call (METHODS.md §1.2), or `single` if the settings' limits leave no
    call for it.
    """
    request = inquiry.request
    by_settings = RouteChosen(route="single", loop="none", by="settings")
    if request.route != "auto":
        chosen = RouteChosen(route=request.route, loop="none", by="request")
        return await inquiry.emit(_allowed(inquiry, chosen))
    if inquiry.settings.routes.allowed == ["single"]:
        return await inquiry.emit(_allowed(inquiry, by_settings))
    async with scope.step("route", request.question) as step:
        try:
            if wants_survey(inquiry):
                chosen = RouteChosen(route="compound", loop="none", by="rule")
            else:
                chosen = await planner_of(inquiry.roles.revelator).route(step)
        except LimitReached:
            chosen = by_settings
        await step.emit(_allowed(inquiry, chosen))
    return None


def _allowed(inquiry: Inquiry, chosen: RouteChosen) -> RouteChosen:
    """Set the loop of a route, after the route that the settings do not allow became `single`."""
    if chosen.route not in inquiry.settings.routes.allowed:
        chosen.route, chosen.by, chosen.confidence = "single", "settings", None
    chosen.loop = resolve_loop(chosen.route, inquiry.request.loop)
    return chosen


def resolve_loop(route: RouteName, loop: RequestLoop) -> LoopName:
    """Return the loop that a route runs: none for `direct`, ANRAG by default."""
    if route == "direct":
        return "none"
    return "anrag" if loop == "default" else loop


def _timing(inquiry: Inquiry, queued_s: float) -> Timing:
    return Timing(
        total=_ms(inquiry.budget.elapsed_s + queued_s),
        queue=_ms(queued_s),
        routing=_ms(inquiry.routing_time.seconds),
        retrieval=_ms(inquiry.retrieval_time.seconds),
        generation=_ms(inquiry.generation_time.seconds),
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
