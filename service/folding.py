"""The fold: events of one question in, the answer's body out (design: one stream, two outputs)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from service.citing import Evidence, cite
from service.domain import (
    Answer,
    CallUsage,
    Citation,
    Flag,
    LoopName,
    RouteName,
    Step,
    StepKind,
    StepPassage,
    Timing,
    TriggerDetail,
    Usage,
)
from service.events import (
    BaseEvent,
    Judgement,
    PassagesFound,
    QueryIssued,
    RetrievedPassage,
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


@dataclass(slots=True)
class _StepState:
    id: str
    kind: StepKind
    question: str | None
    opened_ms: float
    query: str | None = None
    queries: int = 0
    thoughts: list[str] = field(default_factory=list)
    passages: list[RetrievedPassage] = field(default_factory=list)
    kept: dict[str, tuple[bool, str | None]] = field(default_factory=dict)
    answer: str | None = None
    trigger: TriggerDetail | None = None
    flags: list[Flag] = field(default_factory=list)
    usage: CallUsage = field(default_factory=CallUsage)
    ms: float = 0.0
    answer_tokens: list[str] = field(default_factory=list)
    ended: bool = False
    withdrawn: bool = False

    def shown(self) -> list[RetrievedPassage]:
        """Passages a reader was shown."""
        return [p for p in self.passages if self.kept.get(p.passage_id, (p.kept, None))[0]]

    def body(self) -> Step:
        return Step(
            id=self.id,
            kind=self.kind,
            question=self.question,
            query=self.query,
            thought="\n".join(self.thoughts) or None,
            passages=[self._passage(p) for p in self.passages],
            answer=self.answer,
            trigger=self.trigger,
            flags=self.flags,
            llm_calls=self.usage.llm_calls,
            ms=self.ms,
        )

    def _passage(self, passage: RetrievedPassage) -> StepPassage:
        kept, reason = self.kept.get(passage.passage_id, (passage.kept, passage.reason))
        return StepPassage(
            passage_id=passage.passage_id,
            title=passage.title,
            rank=passage.rank,
            score=passage.score,
            kept=kept,
            reason=reason,
        )


class Fold:
    """Feed it every event of a question in order, then ask for `answer`."""

    def __init__(self) -> None:
        self._start: Start | None = None
        self.route: RouteName | None = None
        self.loop: LoopName | None = None
        self._steps: dict[str, _StepState] = {}
        self._stop: Stop | None = None
        self._missing: list[str] = []

    def add(self, event: BaseEvent) -> None:
        """Take one event; the ones that change nothing in the body are passed over."""
        if isinstance(event, Start):
            self._start = event
        elif isinstance(event, RouteChosen):
            self.route, self.loop = event.route, event.loop
        elif isinstance(event, Stop):
            self._stop = event
        elif isinstance(event, StepStart) and event.step:
            self._steps[event.step] = _StepState(event.step, event.kind, event.question, event.ms)
        elif event.step in self._steps:
            self._add_to_step(self._steps[event.step], event)

    def _add_to_step(self, step: _StepState, event: BaseEvent) -> None:
        match event:
            case QueryIssued():
                step.query = event.query
                step.queries += 1
            case PassagesFound():
                step.passages = event.passages
                self._missing += [name for name in event.missing if name not in self._missing]
            case Judgement(passage_id=str(passage_id)):
                step.kept[passage_id] = (bool(event.kept), event.reason)
            case ThoughtWritten():
                step.thoughts.append(event.text)
            case Trigger():
                step.trigger = event.detail
            case Token(role="answer"):
                step.answer_tokens.append(event.text)
                step.withdrawn = False
            case Withdraw(role="answer"):
                step.answer_tokens.clear()
                step.withdrawn = step.ended
            case StepEnd():
                step.ended = True
                step.answer, step.flags, step.usage = event.answer, event.flags, event.usage
                step.ms = round(event.ms - step.opened_ms, 3)

    @property
    def last_step(self) -> str | None:
        """The id of the step opened last."""
        return next(reversed(self._steps), None)

    @property
    def answer_text(self) -> str:
        """The answer as the watchers of the stream see it: its tokens, less what was withdrawn."""
        return "".join("".join(step.answer_tokens) for step in self._steps.values())

    @property
    def last_sub_answer(self) -> str | None:
        """The newest answer any step reached."""
        answers = [step.answer for step in self._steps.values() if step.answer]
        return answers[-1] if answers else None

    @property
    def without_evidence(self) -> bool:
        """Whether some step found no passage worth reading."""
        return any("no_evidence" in step.flags for step in self._steps.values())

    def citations(self) -> list[Citation]:
        """Of every passage shown in a step whose answer reached the final one (design, Answer).

        A loop that fell back to answering directly (`fallback_direct`) used none of its passages;
        nor does an answer that was withdrawn as a whole, after its step, count.
        """
        steps = self._steps.values()
        fell_back = {_parent(step.id) for step in steps if "fallback_direct" in step.flags}
        reads_later = self.loop not in (None, "anrag")
        evidence = [
            Evidence(step.id, step.answer or self.answer_text, step.question or "", step.shown())
            for step in steps
            if step.kind == "retrieve"
            and not step.withdrawn
            and _parent(step.id) not in fell_back
            and (step.answer or reads_later)
        ]
        return cite(evidence)

    def answer(self, timing: Timing) -> Answer:
        """The body. Raises ValueError when `start`, `route` or `stop` has not come."""
        if self._start is None or self.route is None or self.loop is None or self._stop is None:
            raise ValueError("the fold needs start, route and stop before the body")
        return Answer(
            id=self._start.id,
            question=self._start.question,
            answer=self.answer_text,
            answered=self._stop.answered,
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
            retrievals=sum(step.queries for step in self._steps.values()),
            passages=sum(len(step.shown()) for step in self._steps.values()),
            steps=_cycles([step.id for step in self._steps.values() if step.queries]),
        )


def _parent(step_id: str) -> str:
    return step_id.rpartition(".")[0]


def _cycles(step_ids: list[str]) -> int:
    """Retrieve-and-generate cycles (methods §5): parallel parts count as their longest part."""
    own = [step_id for step_id in step_ids if "." not in step_id]
    parts = Counter(".".join(i.split(".")[:2]) for i in step_ids if "." in i)
    return len(own) + max(parts.values(), default=0)
