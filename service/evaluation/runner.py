"""Ask every question through the same entry as HTTP, and score the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from service.answer.events import (
    AnswerReady,
    BaseEvent,
    Failed,
    QueryIssued,
    RouteChosen,
    StepEnd,
)
from service.answer.request import PreparedRequest
from service.core.concurrency import closing, merge
from service.core.domain import Answer, CallUsage, LoopName, RouteName, StoppedBy
from service.core.errors import RevelatorError
from service.evaluation.datasets import GoldQuestion
from service.evaluation.metrics import VERSIONS, Outcome, Scoring, count_parts, score

Ask = Callable[[PreparedRequest], AsyncIterator[BaseEvent]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to ask. `request` is shared by all questions; `gold_routes` asks each question by its
    gold route (the papers' oracle), if it has one."""

    request: PreparedRequest
    concurrency: int = 8
    gold_routes: bool = False
    scoring: Scoring = field(default_factory=Scoring)


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one question. A failed one has `error`, and its cost until then."""

    id: str
    question: str
    gold: tuple[str, ...]
    gold_route: RouteName | None
    prediction: str | None
    answered: bool
    scores: dict[str, float | None]
    parts: int
    parts_found: int
    route: RouteName | None = None
    loop: LoopName | None = None
    stopped_by: StoppedBy | None = None
    steps: int | None = None
    retrievals: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ms: float | None = None
    degraded: tuple[str, ...] = ()
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"evaluators": VERSIONS}


async def evaluate(questions: Sequence[GoldQuestion], ask: Ask, plan: Plan) -> AsyncIterator[Row]:
    """Return one row per question, in order; at most `concurrency` are asked at the same time.

    A question that fails for any reason is a row that counts as wrong.
    """
    todo = iter(enumerate(questions))
    workers = [_work(todo, ask, plan) for _ in range(min(max(plan.concurrency, 1), len(questions)))]
    waiting: dict[int, Row] = {}
    following = 0
    async with closing(merge(workers)) as results:
        async for _, (index, row) in results:
            waiting[index] = row
            while following in waiting:
                yield waiting.pop(following)
                following += 1


async def _work(
    todo: Iterator[tuple[int, GoldQuestion]], ask: Ask, plan: Plan
) -> AsyncIterator[tuple[int, Row]]:
    for index, question in todo:
        yield index, await ask_one(question, ask, plan)


@dataclass(slots=True)
class _Seen:
    """What the events told before the end."""

    answer: Answer | None = None
    error: str | None = None
    route: RouteName | None = None
    loop: LoopName | None = None
    retrievals: int = 0
    usage: CallUsage = field(default_factory=CallUsage)

    def see(self, event: BaseEvent) -> None:
        match event:
            case RouteChosen():
                self.route, self.loop = event.route, event.loop
            case QueryIssued():
                self.retrievals += 1
            case StepEnd():
                self.usage = self.usage.plus(event.usage)
            case AnswerReady():
                self.answer = event.body
            case Failed():
                self.error = f"{event.problem.type}: {event.problem.detail}"


async def ask_one(question: GoldQuestion, ask: Ask, plan: Plan) -> Row:
    """Ask one question and score it."""
    changes: dict[str, str] = {"question": question.question}
    if plan.gold_routes and question.route:
        # No loop runs under `direct`, so none may be asked for by name there.
        loop = "default" if question.route == "direct" else plan.request.loop
        changes |= {"route": question.route, "loop": loop}
    request = plan.request.model_copy(update=changes)
    seen, routed = _Seen(), request.route == "auto"
    try:
        async with closing(ask(request)) as events:
            async for event in events:
                seen.see(event)
    except RevelatorError as error:
        seen.error = f"urn:revelator:problem:{error.slug}: {error.detail}"
    except Exception as error:
        seen.error = f"{type(error).__name__}: {error}"
    if seen.answer is None:
        return _failed(question, seen, routed, plan.scoring)
    return _answered(question, seen.answer, routed, plan.scoring)


def _answered(question: GoldQuestion, body: Answer, routed: bool, scoring: Scoring) -> Row:
    outcome = Outcome(body.answer, body.answered, body.route, tuple(body.citations), routed)
    return Row(
        **_scored(question, outcome, scoring),
        prediction=body.answer,
        answered=body.answered,
        route=body.route,
        loop=body.loop,
        stopped_by=body.stopped_by,
        steps=body.usage.steps,
        retrievals=body.usage.retrievals,
        llm_calls=body.usage.llm_calls,
        prompt_tokens=body.usage.prompt_tokens,
        completion_tokens=body.usage.completion_tokens,
        ms=body.timing_ms.total,
        degraded=tuple(body.degraded),
    )


def _failed(question: GoldQuestion, seen: _Seen, routed: bool, scoring: Scoring) -> Row:
    return Row(
        **_scored(question, Outcome(route=seen.route, routed=routed), scoring),
        prediction=None,
        answered=False,
        route=seen.route,
        loop=seen.loop,
        retrievals=seen.retrievals,
        llm_calls=seen.usage.llm_calls,
        prompt_tokens=seen.usage.prompt_tokens,
        completion_tokens=seen.usage.completion_tokens,
        error=seen.error or "The stream ended without an answer or an error.",
    )


def _scored(question: GoldQuestion, outcome: Outcome, scoring: Scoring) -> dict[str, Any]:
    return {
        "id": question.id,
        "question": question.question,
        "gold": question.answers,
        "gold_route": question.route,
        "scores": score(outcome, question, scoring),
        "parts": len(question.parts),
        "parts_found": count_parts(outcome, question, scoring),
    }
