"""Ask every question through the same entry as the HTTP API, and score the answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.answer.events import (
    AnswerReady,
    BaseEvent,
    Failed,
    PassagesFound,
    QueryIssued,
    RetrievedPassage,
    RouteChosen,
    Start,
    StepEnd,
)
from service.answer.request import PreparedRequest
from service.core.concurrency import closing, merge
from service.core.domain import Answer, CallUsage
from service.core.errors import RevelatorError
from service.evaluation.datasets import GoldQuestion
from service.evaluation.metrics import FoundPassage, QuestionResult, Scorer, score
from service.evaluation.rows import Key, Row
from service.evaluation.traces import Recorder, header_of, trace_path

Ask = Callable[[PreparedRequest], AsyncIterator[BaseEvent]]
Finish = Callable[[Row], Awaitable[Row]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How the questions of a dataset are asked by a method.

    `request` is shared by all questions. With `gold_routes`, each question that has a gold route is
    asked with it (the papers' oracle). `yes_no` is that of `Scorer`. `dataset` and `method` name
    the rows. `traces` is the folder to which the events of every question are written, or None.
    """

    request: PreparedRequest
    concurrency: int = 8
    gold_routes: bool = False
    yes_no: bool = False
    dataset: str = ""
    method: str = ""
    traces: Path | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One question and its plan."""

    question: GoldQuestion
    plan: Plan

    @property
    def key(self) -> Key:
        return Key(self.plan.dataset, self.plan.method, self.question.id)

    @property
    def request(self) -> PreparedRequest:
        request, route = self.plan.request, self.question.route
        changes = {"question": self.question.question}
        if self.plan.gold_routes and route is not None:
            # No loop runs under `direct`, so a request for that route must not name one.
            changes |= {"route": route, "loop": "default" if route == "direct" else request.loop}
        return request.model_copy(update=changes)

    def recorder(self) -> Recorder | None:
        """Return the recorder of the events, or None if traces are not kept."""
        folder = self.plan.traces
        if folder is None:
            return None
        header = header_of(self.key, self.request.model_dump(mode="json"), self.question)
        return Recorder(trace_path(folder, self.key), header)


async def evaluate(questions: Sequence[GoldQuestion], ask: Ask, plan: Plan) -> AsyncIterator[Row]:
    """Yield a row per question in order of completion, with at most `concurrency` open questions.

    A question that fails for any reason yields a row that counts as wrong.
    """
    tasks = [Task(question, plan) for question in questions]
    async with closing(work_off(tasks, ask, plan.concurrency)) as rows:
        async for row in rows:
            yield row


async def work_off(
    tasks: Sequence[Task], ask: Ask, concurrency: int, finish: Finish | None = None
) -> AsyncIterator[Row]:
    """Start the tasks in order, and yield the row of each on completion, after `finish` was
    applied."""
    todo = iter(tasks)
    workers = [_work(todo, ask, finish) for _ in range(min(max(concurrency, 1), len(tasks)))]
    async with closing(merge(workers)) as results:
        async for _, row in results:
            yield row


async def _work(todo: Iterator[Task], ask: Ask, finish: Finish | None) -> AsyncIterator[Row]:
    for task in todo:
        row = await ask_one(task, ask)
        yield await finish(row) if finish else row


@dataclass(slots=True)
class _Seen:
    """What the events of a question have reported so far."""

    id: str | None = None
    answer: Answer | None = None
    error: str | None = None
    first: RouteChosen | None = None
    route: RouteChosen | None = None
    retrievals: int = 0
    usage: CallUsage = field(default_factory=CallUsage)
    passages: dict[str, RetrievedPassage] = field(default_factory=dict)

    def see(self, event: BaseEvent) -> None:
        match event:
            case Start():
                self.id = event.id
            case RouteChosen():
                self.first, self.route = self.first or event, event
            case QueryIssued():
                self.retrievals += 1
            case PassagesFound():
                self.passages.update({found.passage_id: found for found in event.passages})
            case StepEnd():
                self.usage = self.usage.plus(event.usage)
            case AnswerReady():
                self.answer = event.body
            case Failed():
                self.error = f"{event.problem.type}: {event.problem.detail}"

    def found(self) -> tuple[FoundPassage, ...]:
        """Return each passage found once, with `kept` as the body of the answer reports it."""
        steps = self.answer.steps if self.answer else []
        kept = {passage.passage_id for step in steps for passage in step.passages if passage.kept}
        return tuple(
            FoundPassage(passage_id, passage.title, passage.text, passage_id in kept)
            for passage_id, passage in self.passages.items()
        )


async def ask_one(task: Task, ask: Ask) -> Row:
    """Ask one question and score the answer. Raises StoreError if its trace cannot be written."""
    request, seen, recorder = task.request, _Seen(), task.recorder()
    since = time.monotonic()
    try:
        async with closing(ask(request)) as events:
            async for event in events:
                seen.see(event)
                if recorder:
                    recorder.see(event)
    except RevelatorError as error:
        seen.error = f"urn:revelator:problem:{error.slug}: {error.detail}"
    except Exception as error:
        seen.error = f"{type(error).__name__}: {error}"
    wall_ms = round((time.monotonic() - since) * 1000, 3)
    if recorder:
        await recorder.keep()
    routed, body = request.route == "auto", seen.answer
    if body is None:
        route = seen.route.route if seen.route else None
        outcome = QuestionResult(route=route, routed=routed, found=seen.found(), failed=True)
        fields = _failed(seen)
    else:
        outcome = QuestionResult(
            body.answer, body.answered, body.route, tuple(body.citations), routed, seen.found()
        )
        fields = _answered(body)
    return Row(**_scored(task, outcome), **_told(seen), **fields, wall_ms=wall_ms)


def _answered(body: Answer) -> dict[str, Any]:
    return {
        "prediction": body.answer,
        "answered": body.answered,
        "route": body.route,
        "loop": body.loop,
        "stopped_by": body.stopped_by,
        "steps": body.usage.steps,
        "retrievals": body.usage.retrievals,
        **_spent(body.usage),
        "ms": body.timing_ms.total,
        "queue_ms": body.timing_ms.queue,
        "last_resort": any("last_resort" in step.flags for step in body.steps),
        "degraded": tuple(body.degraded),
    }


def _failed(seen: _Seen) -> dict[str, Any]:
    return {
        "prediction": None,
        "answered": False,
        "route": seen.route and seen.route.route,
        "loop": seen.route and seen.route.loop,
        "retrievals": seen.retrievals,
        **_spent(seen.usage),
        "error": seen.error or "The stream ended without an answer or an error.",
    }


def _spent(usage: CallUsage) -> Mapping[str, Any]:
    return {name: getattr(usage, name) for name in CallUsage.model_fields}


def _told(seen: _Seen) -> dict[str, Any]:
    first = seen.first
    return {
        "answer_id": seen.id,
        "chosen_route": first and first.route,
        "chosen_by": first and first.by,
        "confidence": first and first.confidence,
    }


def _scored(task: Task, outcome: QuestionResult) -> dict[str, Any]:
    question, plan = task.question, task.plan
    return {
        "dataset": plan.dataset,
        "method": plan.method,
        "id": question.id,
        "question": question.question,
        "gold": question.answers,
        "gold_route": question.route,
        "scores": score(outcome, question, yes_no=plan.yes_no),
        "parts": len(question.parts),
        "parts_found": Scorer(outcome, question).parts_found(),
        "retrieved": len(outcome.found),
        "pool": len(outcome.pool),
    }
