"""The steps an Auto-RAG conversation leaves, as events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from service.answer.events import BaseEvent, ThoughtWritten, Token, TokenRole, Withdraw
from service.answer.inquiry import OpenStep, Scope
from service.core.domain import CallUsage, StepKind


@dataclass(slots=True)
class Record:
    """At most one step is open. `answer` is what stands of the answer's tokens; `owed` the cost of
    calls that no step was charged with yet."""

    scope: Scope
    question: str
    as_role: TokenRole
    step: OpenStep | None = None
    answer: str = ""
    owed: CallUsage = field(default_factory=CallUsage)
    drafted: bool = False

    @property
    def writes_answer(self) -> bool:
        return self.step is not None and self.step.kind == "answer"

    def call(self) -> OpenStep:
        """A step that is never shown: it counts a call until a step can be charged with it."""
        return OpenStep(self.scope.inquiry, "", "retrieve")

    def open(
        self, kind: StepKind, question: str, thought: str | None
    ) -> tuple[OpenStep, list[BaseEvent]]:
        """Close the open step, open the next one; it is charged with what is owed."""
        events = self._end()
        step = self.step = self.scope.step(kind, question)
        self.drafted = False
        self._charge(step)
        events.append(step.start())
        if thought:
            events.append(ThoughtWritten(step=step.id, text=thought))
        return step, events

    def open_answer(self, thought: str | None) -> tuple[OpenStep, list[BaseEvent]]:
        """The step that the answer is written in, if it is not open yet."""
        if self.step is not None and self.step.kind == "answer":
            return self.step, []
        return self.open("answer", self.question, thought)

    def read(self, thought: str | None) -> None:
        """The open retrieval's documents were read, with this result."""
        if self.step is not None and self.step.kind == "retrieve":
            self.step.answer = thought

    def draft(self, text: str) -> list[BaseEvent]:
        """Reasoning, shown in the step whose documents it is about."""
        if self.step is None or self.step.kind == "answer":
            return []
        self.drafted = True
        return [Token(step=self.step.id, role="draft", text=text)]

    def write(self, text: str, thought: str | None) -> list[BaseEvent]:
        """More of the answer."""
        if not text:
            return []
        step, events = self.open_answer(thought)
        self.answer += text
        return [*events, Token(step=step.id, role=self.as_role, text=text)]

    def withdraw(self, reason: Literal["restart", "repair"] = "restart") -> list[BaseEvent]:
        """What was written of the answer is void."""
        if not self.answer or self.step is None:
            return []
        self.answer = ""
        return [Withdraw(step=self.step.id, role=self.as_role, reason=reason)]

    def decline(self) -> list[BaseEvent]:
        """What was written says that there is no answer."""
        if self.step is not None:
            self.step.flag("declined")
        return self.withdraw("repair")

    def restart(self) -> list[BaseEvent]:
        """The turn under way is void: it will be written again."""
        events = self.withdraw()
        if self.drafted and self.step is not None and self.step.kind == "retrieve":
            events.append(Withdraw(step=self.step.id, role="draft", reason="restart"))
        return events

    def conclude(self) -> bool:
        """What stands is the answer; whether there is one."""
        if self.writes_answer and self.step is not None:
            self.step.answer = self.answer or None
        return bool(self.answer)

    def close(self) -> list[BaseEvent]:
        """End the last step; it is charged with what no other was. Calls that opened none have one
        of their own."""
        events = self.open_answer(None)[1] if self.step is None and self.owed.llm_calls else []
        if self.step is not None:
            self._charge(self.step)
        return [*events, *self._end()]

    def _charge(self, step: OpenStep) -> None:
        step.charge(self.owed)
        self.owed = CallUsage()

    def _end(self) -> list[BaseEvent]:
        step, self.step = self.step, None
        return [step.end()] if step is not None else []
