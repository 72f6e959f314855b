"""Ask every question through the same entry as the HTTP API, and score the answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from service.answer.events import BaseEvent, PassagesFound, RouteChosen, Start, Token
from service.answer.fold import Fold
from service.answer.request import PreparedRequest
from service.core.concurrency import as_done, closing
from service.core.domain import Answer, CallUsage, Problem
from service.core.errors import RevelatorError
from service.evaluation.datasets import GoldQuestion
from service.evaluation.metrics import FoundPassage, QuestionResult, score
from service.evaluation.rows import Key, Row
from service.evaluation.traces import Recorder, trace_path
from service.retrieval.base import Alter

Ask = Callable[[PreparedRequest, Alter | None], AsyncIterator[BaseEvent]]
Finish = Callable[[Row], Awaitable[Row]]
NO_RESULT: Final = "The stream ended without an answer or an error."


@dataclass(frozen=True, slots=True)
class Task:
    """One question that one method answers on one dataset.

    `request` is the method's, with any question. With `gold_routes`, a question that has a gold
    route is asked with it (the papers' oracle). `yes_no` is that of `score`. The events are
    written below the folder `traces`, or not if it is None. `alter` wraps the retriever.
    """

    question: GoldQuestion
    method_request: PreparedRequest
    gold_routes: bool = False
    yes_no: bool = False
    dataset: str = ""
    method: str = ""
    traces: Path | None = None
    alter: Alter | None = None

    @property
    def key(self) -> Key:
        return Key(self.dataset, self.method, self.question.id)

    @property
    def request(self) -> PreparedRequest:
        request, route = self.method_request, self.question.route
        changes = {"question": self.question.question}
        if self.gold_routes and route is not None:
            # No loop runs under `direct`, so a request for that route must not name one.
            changes |= {"route": route, "loop": "default" if route == "direct" else request.loop}
        return request.model_copy(update=changes)

    def recorder(self) -> Recorder | None:
        """Return the recorder of the events, or None if traces are not kept."""
        if self.traces is None:
            return None
        path, asked = trace_path(self.traces, self.key), self.request.model_dump(mode="json")
        return Recorder(path, self.key, asked, self.question)


def work_off(
    tasks: Sequence[Task], ask: Ask, concurrency: int, finish: Finish | None = None
) -> AsyncIterator[Row]:
    """Start the tasks in order, and yield the row of each on completion, after `finish` was
    applied.

    A question that fails for any reason yields a row that counts as wrong.
    """

    async def row_of_task(task: Task) -> Row:
        row = await ask_one(task, ask)
        return await finish(row) if finish else row

    return as_done(row_of_task, tasks, min(concurrency, len(tasks)))


async def ask_one(task: Task, ask: Ask) -> Row:
    """Ask one question and score the answer. Raises StoreError if its trace cannot be written."""
    request, events, recorder = task.request, list[BaseEvent](), task.recorder()
    error: str | None = None
    since = time.monotonic()
    try:
        async with closing(ask(request, task.alter)) as answering:
            async for event in answering:
                if not isinstance(event, Token):
                    events.append(event)
                if recorder:
                    recorder.see(event)
    except RevelatorError as failure:
        error = f"urn:revelator:problem:{failure.slug}: {failure.detail}"
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    wall_ms = round((time.monotonic() - since) * 1000, 3)
    if recorder:
        await recorder.keep()
    return row_of(task, request, events, error, wall_ms)


def row_of(
    task: Task,
    request: PreparedRequest,
    events: Sequence[BaseEvent],
    error: str | None,
    wall_ms: float,
) -> Row:
    """Return the row of a question that emitted these events, and then raised `error`, if any."""
    fold = Fold()
    for event in events:
        fold.add(event)
    told, body = NO_RESULT, None
    if isinstance(fold.result, Problem):
        told = f"{fold.result.type}: {fold.result.detail}"
    elif fold.result is not None:
        body = fold.result
    found, question = found_by(events, body), task.question
    result = QuestionResult(
        body.answer if body else "",
        body is not None and body.answered,
        fold.route,
        tuple(body.citations) if body else (),
        request.route == "auto",
        found,
        failed=body is None,
    )
    scores = score(result, question, yes_no=task.yes_no)
    return Row(
        dataset=task.dataset,
        method=task.method,
        id=question.id,
        question=question.question,
        gold=question.answers,
        gold_route=question.route,
        prediction=body.answer if body else None,
        answered=result.answered,
        scores=scores,
        parts=len(question.parts),
        parts_found=round((scores["compound_accuracy"] or 0.0) * len(question.parts)),
        **_so_far(fold),
        retrieved=len(found),
        pool=len(result.pool),
        **_first(events),
        wall_ms=wall_ms,
        **({"error": error or told} if body is None else _of_body(body)),
    )


def _so_far(fold: Fold) -> dict[str, Any]:
    usage = fold.usage()
    return {
        "route": fold.route,
        "loop": fold.loop,
        "retrievals": usage.retrievals,
        **{name: getattr(usage, name) for name in CallUsage.model_fields},
    }


def _first(events: Sequence[BaseEvent]) -> dict[str, Any]:
    """Return what the first events tell: the answer's id, and the route before any escalation."""
    told: dict[str, Any] = {}
    for event in events:
        if isinstance(event, Start):
            told["answer_id"] = event.id
        elif isinstance(event, RouteChosen) and "chosen_route" not in told:
            told |= {
                "chosen_route": event.route, "chosen_by": event.by, "confidence": event.confidence,
            }  # fmt: skip
    return told


def _of_body(body: Answer) -> dict[str, Any]:
    return {
        "stopped_by": body.stopped_by,
        "steps": body.usage.steps,
        "ms": body.timing_ms.total,
        "queue_ms": body.timing_ms.queue,
        "last_resort": any("last_resort" in step.flags for step in body.steps),
        "degraded": tuple(body.degraded),
    }


def found_by(events: Sequence[BaseEvent], body: Answer | None) -> tuple[FoundPassage, ...]:
    """Return each passage found once, with `kept` as the body of the answer reports it."""
    steps = body.steps if body else []
    kept = {passage.passage_id for step in steps for passage in step.passages if passage.kept}
    passages = {
        passage.passage_id: passage
        for event in events
        if isinstance(event, PassagesFound)
        for passage in event.passages
    }
    return tuple(
        FoundPassage(passage_id, passage.title, passage.text, passage_id in kept)
        for passage_id, passage in passages.items()
    )
