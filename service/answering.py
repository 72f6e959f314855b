"""A question becomes events: route, handler, stop, answer; numbered, and folded into the body."""

from __future__ import annotations

from collections.abc import AsyncIterator

import structlog

from service.concurrency import closing
from service.domain import Answer, LoopName, Problem, RequestLoop, RouteName, Timing
from service.errors import DeadlineExceeded, RevelatorError
from service.events import (
    AnswerReady,
    BaseEvent,
    Done,
    Failed,
    RouteChosen,
    Start,
    Stop,
    Token,
)
from service.folding import Fold
from service.handlers import handle
from service.inquiry import Inquiry, Scope
from service.revelator.roles import choose_route

log = structlog.get_logger(__name__)


async def answer_stream(inquiry: Inquiry, queued_s: float = 0.0) -> AsyncIterator[BaseEvent]:
    """All events of one question, from `start` to `done`; `answer` or `error` exactly once.

    `queued_s` is what it waited before admission ended. Close the iterator to cancel everything
    below. Expected and unexpected failures alike end the stream by `error`, then `done`.
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


_UNEXPECTED = "an unexpected failure, logged under this request_id; please report it"


def problem_of(error: RevelatorError, request_id: str) -> Problem:
    """The RFC 9457 problem of an error."""
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
    stop: Stop | None = None
    try:
        async with closing(handle(scope, fold.route or "single", fold.loop or "anrag")) as events:
            async for event in events:
                if isinstance(event, Stop):
                    stop = event
                else:
                    yield event
    except DeadlineExceeded:
        stop = Stop(stopped_by="deadline", answered=False)
    async with closing(
        _end(stop or Stop(stopped_by="answer", answered=True), fold, inquiry)
    ) as end:
        async for event in end:
            yield event


async def _end(stop: Stop, fold: Fold, inquiry: Inquiry) -> AsyncIterator[BaseEvent]:
    """`stop` with citations, after the answer text where no handler wrote one.

    Out of time, the newest sub-answer is the answer; without any, DeadlineExceeded is raised,
    unless the passages were read and held no evidence.
    """
    if fold.answer_text:
        stop = stop.model_copy(update={"answered": True})
    elif stop.stopped_by == "deadline" and fold.last_sub_answer:
        stop = stop.model_copy(update={"answered": True})
        yield Token(role="answer", text=fold.last_sub_answer)
    elif stop.stopped_by == "deadline" and not fold.without_evidence:
        raise DeadlineExceeded(
            "time was up before any answer was reached; allow a longer timeout_s"
        )
    else:
        stop = stop.model_copy(update={"answered": False})
        yield Token(role="answer", text=inquiry.settings.answers.no_answer_text)
    yield stop.model_copy(update={"citations": fold.citations() if stop.answered else []})


async def _route(inquiry: Inquiry, scope: Scope) -> AsyncIterator[BaseEvent]:
    """The `route` event, by the request, a classifier or the Revelator's ROUTE call (methods
    §1.2)."""
    request = inquiry.request
    if request.route != "auto":
        yield _allowed(inquiry, RouteChosen(route=request.route, loop="none", by="request"))
        return
    if inquiry.settings.routes.allowed == ["single"]:
        yield _allowed(inquiry, RouteChosen(route="single", loop="none", by="settings"))
        return
    step = scope.step("route", request.question)
    yield step.start()
    choice = await choose_route(step)
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
        update = {"route": "single", "by": "settings"}
    route: RouteName = chosen.route if not update else "single"
    return chosen.model_copy(update=update | {"loop": resolve_loop(route, inquiry.request.loop)})


def resolve_loop(route: RouteName, loop: RequestLoop) -> LoopName:
    """The loop a route runs (design, Route × loop): none under `direct`, ANRAG by default."""
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
    """Run a question to its end: the body, or the problem it ended by."""
    result: Answer | Problem | None = None
    async with closing(events) as stream:
        async for event in stream:
            if isinstance(event, AnswerReady):
                result = event.body
            elif isinstance(event, Failed):
                result = event.problem
    if result is None:
        raise RevelatorError("the stream ended without an answer or an error")
    return result
