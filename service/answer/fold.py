"""Fold the events of one question into the answer's body (ARCHITECTURE.md, the idea)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from service.answer.events import (
    AnswerReady,
    BaseEvent,
    Failed,
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
from service.answer.evidence import (
    Evidence,
    StepState,
    cite,
    is_unfounded,
    shown_text,
)
from service.core.concurrency import closing
from service.core.domain import (
    Answer,
    Citation,
    Flag,
    LoopName,
    Problem,
    QuestionOutcome,
    RouteName,
    Timing,
    Usage,
)
from service.core.errors import RevelatorError
from service.prompts.templates import NO_ANSWER, UNANSWERED
from service.text.grounding import is_yes_no, support

# A merged answer may state that a part was not found; that needs no support.
DECLINED_PART: Final = re.compile(
    rf"(?:(?:,| and|;)\s*|(?<!\s)\s+)?\b{NO_ANSWER}\b|\. {UNANSWERED}.*", re.IGNORECASE | re.DOTALL
)


class Fold:
    """A question so far, as its events tell. Add every event in order; `answer` is its body.

    The steps, the support of their answers, and the citations: the sentence that supports the
    answer, for each passage shown to a reader.
    """

    def __init__(self) -> None:
        self._start: Start | None = None
        self.route: RouteName | None = None
        self.loop: LoopName | None = None
        self.surveys = False  # the answer is to be a survey of documents
        self.answering = True  # a retrieval's answer is one to its question, not reasoning
        self.steps: list[StepState] = []  # in order
        self._by_id: dict[str | None, StepState] = {}
        self.result: Answer | Problem | None = None
        self.missing: list[str] = []  # retrievers that were unavailable
        self._stop: Stop | None = None

    def add(self, event: BaseEvent) -> None:
        """Add an event. Events that do not affect the body are ignored."""
        match event:
            case Start():
                self._start = event
            case RouteChosen():
                self.route, self.loop = event.route, event.loop
                self.surveys = event.by == "rule"
            case Stop():
                self._stop = event
            case StepStart() if event.step:
                step = StepState(event.step, event.kind, event.question, event.ms)
                self.steps.append(step)
                self._by_id[step.id] = step
            case AnswerReady():
                self.result = event.body
            case Failed():
                self.result = event.problem
            case _ if found := self._by_id.get(event.step):
                self._add_to_step(found, event)

    def _add_to_step(self, step: StepState, event: BaseEvent) -> None:
        match event:
            case Token(role="answer"):
                step.answer_tokens.append(event.text)
                step.withdrawn = False
            case QueryIssued():
                step.queries.append(event.query)
            case PassagesFound():
                step.passages = event.passages
                self.missing += [name for name in event.missing if name not in self.missing]
            case Judgement() if event.passage_id is not None:
                step.kept[event.passage_id] = (bool(event.kept), event.reason)
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
    def outcome(self) -> QuestionOutcome:
        """How the question ended: as cancelled, unless there is an answer or an error."""
        if isinstance(self.result, Answer):
            return "answered" if self.result.answered else "unanswered"
        return "cancelled" if self.result is None else "error"

    @property
    def answer_text(self) -> str:
        """The answer as clients of the stream see it: all tokens that were not withdrawn."""
        return "".join(step.written for step in self.steps)

    @property
    def last_sub_answer(self) -> StepState | None:
        """The last step that has an answer, and not a thought, to its question."""
        answered = (step for step in reversed(self.steps) if step.answer and self._claims(step))
        return next(answered, None)

    @property
    def without_evidence(self) -> bool:
        """Whether some step found no relevant passage, or no answer in the passages it read."""
        return any({"no_evidence", "declined"} & set(step.flags) for step in self.steps)

    @property
    def searched(self) -> bool:
        """Whether there was a retrieval."""
        return any(step.queries for step in self.steps)

    @property
    def kept_nothing(self) -> bool:
        """Whether there was a retrieval, but the reader was shown no passage."""
        return self.searched and not any(step.shown() for step in self.steps)

    def missing_support(self, end: StepEnd) -> Flag | None:
        """Return the flag for the answer of a step: `unsupported` if neither the passages shown so
        far nor supported sub-answers support it, `closed_book` if there were none.

        Yes and no are supported by sub-answers if there are any, and then only by supported ones.
        What an encoder read is supported, since it declines what is not probable enough.
        """
        if end.confidence is not None:
            return None
        step = self._by_id.get(end.step)
        if step is None or not end.answer or not self._claims(step) or is_unfounded(end.flags):
            return None
        within = self._within(step)
        passages = [passage for inner in within for passage in inner.shown()]
        parts = [s for s in within if s is not step and s.answer and self._claims(s)]
        sound = [part for part in parts if not is_unfounded(part.flags)]
        if not passages and not sound:
            return "unsupported" if any("unsupported" in p.flags for p in parts) else "closed_book"
        if parts and is_yes_no(end.answer):
            return None if len(sound) == len(parts) else "unsupported"
        texts = [shown_text(passage) for passage in passages]
        texts += [part.answer for part in sound if part.answer]
        answer = DECLINED_PART.sub("", end.answer) if step.kind == "merge" else end.answer
        borne = support(answer, step.question or "", texts)
        return None if borne else "unsupported"

    @property
    def final(self) -> StepState | None:
        """The step that wrote the final answer."""
        return next((step for step in reversed(self.steps) if step.answer_tokens), None)

    @property
    def supported(self) -> bool | None:
        """Whether passages support the final answer. None if nothing was searched."""
        if not self.searched:
            return None
        return self.final is not None and not is_unfounded(self.final.flags)

    @property
    def confidence(self) -> float | None:
        """The probability that the final answer is right: that of its reading, or the lowest one of
        the sub-answers that support it. None if one of them is unknown.
        """
        final = self.final
        if final is None:
            return None
        if final.confidence is not None or not self.supported:
            return final.confidence
        parts = [
            step.confidence
            for step in self._within(final)
            if step is not final and step.answer and self._claims(step)
        ]
        known = [part for part in parts if part is not None]
        return min(known) if known and len(known) == len(parts) else None

    @property
    def kept(self) -> list[RetrievedPassage]:
        """The passages that readers were shown, or were about to be shown."""
        return [passage for step in self.steps if not step.withdrawn for passage in step.shown()]

    def citations(self) -> list[Citation]:
        """Return a sentence of each passage that supports the answer, or a supported sub-answer
        that leads to it. Answers that are unsupported, or come from the model's own knowledge,
        have no citations.

        The citations are in order of step and rank. A merged answer is supported by what supports
        its parts. Those of a survey are the passages of the documents that it is about.
        """
        final = self.final
        if final is not None and final.kind == "merge" and self.surveys:
            return cite([
                Evidence(step.id, passage, step.answer, step.question or "")
                for step in self.steps if step.answer for passage in step.shown()
            ])  # fmt: skip
        if final is None or is_unfounded(final.flags):
            return []
        within = self._within(final)
        bearing: dict[tuple[str, int], Evidence] = {}
        for step in within:
            if step is not final and step.answer and not is_unfounded(step.flags):
                bearing = self._borne(step, step.answer, self._within(step)) | bearing
        parts = any(self._claims(step) and step.answer for step in within if step is not final)
        if final.kind != "merge" and not (parts and is_yes_no(final.written)):
            bearing = self._borne(final, final.written, within) | bearing
        places = {step.id: place for place, step in enumerate(self.steps)}
        in_order = sorted(bearing, key=lambda found: (places[found[0]], found[1]))
        return cite([bearing[found] for found in in_order])

    def _borne(
        self, by: StepState, answer: str, within: Sequence[StepState]
    ) -> dict[tuple[str, int], Evidence]:
        """Return the passages that contain an answer, with their step and their place in it."""
        asked = by.question or ""
        shown = [(step.id, n, p) for step in within for n, p in enumerate(step.shown())]
        spans = {place.passage_id: (place.start, place.end) for place in reversed(by.places)}
        if spans:
            borne = [found for found in shown if found[2].passage_id in spans]
        else:
            texts = [shown_text(passage) for _, _, passage in shown]
            borne = [shown[index] for index in support(answer, asked, texts)]
        return {
            (step, n): Evidence(step, passage, answer, asked, spans.get(passage.passage_id))
            for step, n, passage in borne
        }

    def _claims(self, step: StepState) -> bool:
        """Whether the step's answer answers its question."""
        if step.kind == "retrieve":
            return self.answering or bool(step.answer_tokens)
        return step.kind in ("answer", "merge")

    def _within(self, step: StepState) -> list[StepState]:
        """Return the steps that may support an answer: a retrieval's own step, else those before it
        in its part of the question, except withdrawn ones.
        """
        if step.kind == "retrieve":
            return [step]
        part = step.id.rpartition(".")[0]
        found: list[StepState] = []
        for earlier in self.steps:
            if not earlier.withdrawn and (not part or earlier.id.startswith(f"{part}.")):
                found.append(earlier)
            if earlier is step:
                break
        return found

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
            steps=[step.body() for step in self.steps],
            citations=self._stop.citations,
            usage=self.usage(),
            timing_ms=timing,
            stopped_by=self._stop.stopped_by,
            degraded=list(self.missing),
        )

    def usage(self) -> Usage:
        """What the question used. Cycles of retrieving and generating (METHODS.md §5) are counted
        as `steps`: parallel parts count as their longest part."""
        if isinstance(self.result, Answer):
            return self.result.usage
        total: Counter[str] = Counter()
        for step in self.steps:
            total.update(step.usage.model_dump(exclude_none=True))
        ids = [step.id for step in self.steps if step.queries]
        parts = Counter(".".join(step_id.split(".")[:2]) for step_id in ids if "." in step_id)
        outer = sum("." not in step_id for step_id in ids)
        return Usage(
            **total,
            retrievals=sum(len(step.queries) for step in self.steps),
            passages=sum(len(step.shown()) for step in self.steps),
            steps=outer + max(parts.values(), default=0),
        )


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
