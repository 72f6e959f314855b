"""Fold the events of one question into the answer's body (ARCHITECTURE.md, the idea)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final

from service.answer.events import (
    AnswerReady,
    BaseEvent,
    Failed,
    Judgement,
    PassagesFound,
    QueryIssued,
    RouteChosen,
    Start,
    StepEnd,
    StepStart,
    Stop,
    ThoughtWritten,
    Token,
    Trigger,
    Withdraw,
)
from service.answer.evidence import Steps, StepState
from service.core.concurrency import closing
from service.core.domain import Answer, CallUsage, LoopName, Problem, RouteName, Timing, Usage
from service.core.errors import RevelatorError

FROM_MEMORY: Final[frozenset[LoopName]] = frozenset(["no_retrieval", "entropy_gate"])


class Fold:
    """Add every event of a question in order, then read `answer`."""

    def __init__(self) -> None:
        self._start: Start | None = None
        self.route: RouteName | None = None
        self.loop: LoopName | None = None
        self._steps: dict[str, StepState] = {}
        self._stop: Stop | None = None
        self._missing: list[str] = []

    def add(self, event: BaseEvent) -> None:
        """Add an event. Events that do not affect the body are ignored."""
        if isinstance(event, Start):
            self._start = event
        elif isinstance(event, RouteChosen):
            self.route, self.loop = event.route, event.loop
        elif isinstance(event, Stop):
            self._stop = event
        elif isinstance(event, StepStart) and event.step:
            self._steps[event.step] = StepState(event.step, event.kind, event.question, event.ms)
        elif event.step in self._steps:
            self._add_to_step(self._steps[event.step], event)

    def _add_to_step(self, step: StepState, event: BaseEvent) -> None:
        match event:
            case Token(role="answer"):
                step.answer_tokens.append(event.text)
                step.withdrawn = False
            case QueryIssued():
                step.queries.append(event.query)
            case PassagesFound():
                step.passages = event.passages
                self._missing += [name for name in event.missing if name not in self._missing]
            case Judgement(passage_id=str(passage_id)):
                step.kept[passage_id] = (bool(event.kept), event.reason)
            case ThoughtWritten():
                step.thoughts.append(event.text)
            case Trigger():
                step.trigger = event.detail
            case Withdraw(role="answer"):
                step.answer_tokens.clear()
                step.withdrawn = step.ended
            case StepEnd():
                step.ended = True
                step.answer, step.flags, step.usage = event.answer, event.flags, event.usage
                step.confidence, step.places = event.confidence, event.places
                step.ms = round(event.ms - step.opened_ms, 3)

    @property
    def last_step(self) -> str | None:
        """The id of the step opened last."""
        return next(reversed(self._steps), None)

    @property
    def steps(self) -> Steps:
        return Steps(list(self._steps.values()), self.loop)

    @property
    def answer_text(self) -> str:
        """The answer as clients of the stream see it: all tokens that were not withdrawn."""
        return "".join(step.written for step in self._steps.values())

    @property
    def last_sub_answer(self) -> StepState | None:
        """The last step that has an answer."""
        return next((step for step in reversed(self._steps.values()) if step.answer), None)

    @property
    def without_evidence(self) -> bool:
        """Whether some step found no relevant passage, or no answer in the passages it read."""
        return any({"no_evidence", "declined"} & set(step.flags) for step in self._steps.values())

    @property
    def from_memory(self) -> bool:
        """Whether the answer was to come from the model's own knowledge, by the route, or by a loop
        that works without searches.
        """
        return self.route == "direct" or (self.loop in FROM_MEMORY and not self.searched)

    @property
    def searched(self) -> bool:
        """Whether there was a retrieval."""
        return any(step.queries for step in self._steps.values())

    @property
    def kept_nothing(self) -> bool:
        """Whether there was a retrieval, but the reader was shown no passage."""
        return self.searched and not any(step.shown() for step in self._steps.values())

    def answer(self, timing: Timing) -> Answer:
        """Return the body. Raises ValueError before `start`, `route` and `stop` were added."""
        if self._start is None or self.route is None or self.loop is None or self._stop is None:
            raise ValueError("the body needs the events start, route and stop")
        return Answer(
            id=self._start.id,
            question=self._start.question,
            answer=self.answer_text,
            answered=self._stop.answered,
            supported=self._stop.supported,
            confidence=self._stop.confidence,
            route=self.route,
            loop=self.loop,
            steps=[step.body() for step in self._steps.values()],
            citations=self._stop.citations,
            usage=self.usage(),
            timing_ms=timing,
            stopped_by=self._stop.stopped_by,
            degraded=list(self._missing),
        )

    def usage(self) -> Usage:
        total = CallUsage()
        for step in self._steps.values():
            total = total.plus(step.usage)
        return Usage(
            **total.model_dump(),
            retrievals=sum(len(step.queries) for step in self._steps.values()),
            passages=sum(len(step.shown()) for step in self._steps.values()),
            steps=_cycles([step.id for step in self._steps.values() if step.queries]),
        )


def _cycles(step_ids: list[str]) -> int:
    """Retrieve-and-generate cycles (METHODS.md §5): parallel parts count as their longest part."""
    own = [step_id for step_id in step_ids if "." not in step_id]
    parts = Counter(".".join(i.split(".")[:2]) for i in step_ids if "." in i)
    return len(own) + max(parts.values(), default=0)


async def collect(
    events: AsyncIterator[BaseEvent], show: Callable[[BaseEvent], None] | None = None
) -> Answer | Problem:
    """Run a question to its end, and pass its events to `show`. Returns the body, or the problem
    that ended it.
    """
    result: Answer | Problem | None = None
    async with closing(events) as stream:
        async for event in stream:
            if isinstance(event, AnswerReady):
                result = event.body
            elif isinstance(event, Failed):
                result = event.problem
            if show is not None:
                show(event)
    if result is None:
        raise RevelatorError("The stream ended without an answer or an error.")
    return result
