"""Answer a question: choose the route, run its handler, number the events and fold them into the
body."""

from __future__ import annotations

from collections.abc import AsyncIterator

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
from service.answer.evidence import StepState
from service.answer.fold import Fold
from service.answer.inquiry import Inquiry, Scope
from service.core.concurrency import closing
from service.core.domain import Answer, LoopName, Problem, RequestLoop, RouteName, Timing
from service.core.errors import DeadlineExceeded, LimitReached, RevelatorError
from service.core.settings import AnswerSettings
from service.strategies.last_resort import answer_from, search_once
from service.strategies.registry import handle
from service.strategies.revelator.roles import RouteChoice, choose_route

log = structlog.get_logger(__name__)


async def answer_stream(inquiry: Inquiry, queued_s: float = 0.0) -> AsyncIterator[BaseEvent]:
    """Yield all events of one question, from `start` to `done`, with `answer` or `error` exactly
    once.

    `queued_s` is the time it waited for admission. Closing the iterator cancels the question.
    Expected and unexpected errors alike end the stream with `error` and `done`.
    """
    numbered = _Numbered(inquiry)
    yield numbered.stamp(Start(id=inquiry.id, question=inquiry.question))
    try:
        async with closing(_events(inquiry, numbered.fold)) as events:
            async for event in events:
                yield numbered.stamp(event)
        yield numbered.stamp(AnswerReady(body=numbered.fold.answer(_timing(inquiry, queued_s))))
    except RevelatorError as error:
        yield numbered.stamp(Failed(problem=problem_of(error, inquiry.id)))
    except Exception:
        log.exception("question failed", id=inquiry.id)
        yield numbered.stamp(Failed(problem=problem_of(RevelatorError(_UNEXPECTED), inquiry.id)))
    yield numbered.stamp(Done())


_UNEXPECTED = "An unexpected error occurred. It was logged under this request_id; please report it."


def problem_of(error: RevelatorError, request_id: str) -> Problem:
    """Return the RFC 9457 problem of an error."""
    return Problem(
        type=f"urn:revelator:problem:{error.slug}",
        title=error.title,
        status=error.status,
        detail=error.detail,
        request_id=request_id,
    )


class _Numbered:
    """Gives events their `seq`, `ms` and, where unset, the newest `step`; feeds the fold."""

    def __init__(self, inquiry: Inquiry) -> None:
        self.fold = Fold()
        self._inquiry = inquiry
        self._seq = 0

    def stamp(self, event: BaseEvent) -> BaseEvent:
        event.seq = self._seq
        event.ms = round(self._inquiry.budget.elapsed_s * 1000, 3)
        event.step = event.step or self.fold.last_step
        self._seq += 1
        self.fold.add(event)
        return event


async def _events(inquiry: Inquiry, fold: Fold) -> AsyncIterator[BaseEvent]:
    """Route, then the handler's events; its `Stop` gets an answer text and citations."""
    scope = Scope(inquiry)
    with inquiry.routing_time:
        async with closing(_route(inquiry, scope)) as routing:
            async for event in routing:
                yield event
    stop = Stop(stopped_by="answer", answered=False)
    async with closing(_handled(scope, fold)) as events:
        async for event in events:
            if isinstance(event, Stop):
                stop = event
            else:
                yield _grounded(event, fold, inquiry.settings.answers)
    async with closing(_end(stop, fold, inquiry)) as end:
        async for event in end:
            yield event


async def _handled(scope: Scope, fold: Fold) -> AsyncIterator[BaseEvent]:
    """The handler's events, then those of the last resort; after each of them a `Stop`."""
    stop = Stop(stopped_by="answer", answered=False)
    try:
        events = handle(scope, fold.route or "single", fold.loop or "anrag")
        async with closing(events) as handled:
            async for event in handled:
                stop = event if isinstance(event, Stop) else stop
                yield event
    except LimitReached as limit:
        stop = Stop(stopped_by=limit.stopped_by, answered=False)
        yield stop
    async with closing(_last_resort(scope, fold, stop)) as resort:
        async for event in resort:
            yield event


async def _last_resort(scope: Scope, fold: Fold, stop: Stop) -> AsyncIterator[BaseEvent]:
    """Where the handler wrote no answer: at a limit of the question one from the passages kept by
    then; where a loop kept none, one search for the question itself, unless it was made."""
    budget, question = scope.inquiry.budget, scope.inquiry.question
    if fold.steps.final is not None or not budget.may_answer:
        return
    kept = fold.steps.kept
    if kept and stop.stopped_by in ("deadline", "budget"):
        resort = answer_from(scope, question, kept, stop.stopped_by)
    elif not kept and fold.route != "compound" and not fold.steps.searched(question):
        resort = search_once(scope, question, stop.stopped_by)
    else:
        return
    async with closing(resort) as events:
        async for event in events:
            yield event


def _grounded(event: BaseEvent, fold: Fold, settings: AnswerSettings) -> BaseEvent:
    """A step's end says so where nothing bears the step's answer."""
    if isinstance(event, StepEnd) and fold.route != "direct":
        flag = fold.steps.missing_support(event)
        if flag is not None:
            flag = "closed_book" if settings.invites_memory else flag
            event.flags = [*event.flags, flag]
    return event


def _withheld(step: StepState, fold: Fold, settings: AnswerSettings) -> bool:
    """Whether the settings keep back the answer that a step reached."""
    if fold.route == "direct":
        return False
    if fold.kept_nothing and settings.no_evidence == "abstain":
        return True
    from_memory = "closed_book" in step.flags and settings.no_evidence != "closed_book"
    return settings.unsupported == "abstain" and ("unsupported" in step.flags or from_memory)


async def _end(stop: Stop, fold: Fold, inquiry: Inquiry) -> AsyncIterator[BaseEvent]:
    """`stop` with citations, after the answer text where no handler wrote one.

    An answer that the settings keep back is withdrawn. At a limit of the question the newest
    sub-answer is the answer; out of time without any, DeadlineExceeded is raised, unless the
    passages were judged and held no evidence.
    """
    settings, final = inquiry.settings.answers, fold.steps.final
    if final is None and stop.stopped_by in ("deadline", "budget"):
        final = fold.last_sub_answer
        if final is not None:
            yield Token(step=final.id, role="answer", text=final.answer or "")
        elif stop.stopped_by == "deadline" and not fold.without_evidence:
            raise DeadlineExceeded(
                "The time limit was reached before there was an answer. Allow a longer timeout_s."
            )
    answered = final is not None and not _withheld(final, fold, settings)
    if final is not None and not answered:
        yield Withdraw(step=final.id, role="answer", reason="unsupported")
    if not answered:
        yield Token(role="answer", text=settings.no_answer_text)
    cited = fold.steps.citations() if answered else []
    yield stop.model_copy(update={"answered": answered, "citations": cited})


async def _route(inquiry: Inquiry, scope: Scope) -> AsyncIterator[BaseEvent]:
    """The `route` event, by the request, a classifier or the Revelator's ROUTE call
    (METHODS.md §1.2); `single`, by the settings, where their limits leave no call for it."""
    request = inquiry.request
    if request.route != "auto":
        yield _allowed(inquiry, RouteChosen(route=request.route, loop="none", by="request"))
        return
    if inquiry.settings.routes.allowed == ["single"]:
        yield _allowed(inquiry, RouteChosen(route="single", loop="none", by="settings"))
        return
    step = scope.step("route", request.question)
    yield step.start()
    try:
        choice = await choose_route(step)
    except LimitReached:
        choice = RouteChoice("single", "settings", None)
    yield _allowed(
        inquiry,
        RouteChosen(
            step=step.id,
            route=choice.route,
            loop="none",
            by=choice.by,
            confidence=choice.confidence,
        ),
    )
    yield step.end()


def _allowed(inquiry: Inquiry, chosen: RouteChosen) -> RouteChosen:
    """The route the settings allow (another falls to `single`), with its loop."""
    update: dict[str, object] = {}
    if chosen.route not in inquiry.settings.routes.allowed:
        update = {"route": "single", "by": "settings", "confidence": None}
    route: RouteName = chosen.route if not update else "single"
    return chosen.model_copy(update=update | {"loop": resolve_loop(route, inquiry.request.loop)})


def resolve_loop(route: RouteName, loop: RequestLoop) -> LoopName:
    """Return the loop that a route runs: none for `direct`, ANRAG by default."""
    if route == "direct":
        return "none"
    return "anrag" if loop == "default" else loop  # type: ignore[return-value]


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


async def collect(events: AsyncIterator[BaseEvent]) -> Answer | Problem:
    """Run a question to its end and return the body, or the problem that ended it."""
    result: Answer | Problem | None = None
    async with closing(events) as stream:
        async for event in stream:
            if isinstance(event, AnswerReady):
                result = event.body
            elif isinstance(event, Failed):
                result = event.problem
    if result is None:
        raise RevelatorError("The stream ended without an answer or an error.")
    return result
