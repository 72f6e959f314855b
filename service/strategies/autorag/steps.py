"""The steps of an Auto-RAG conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from service.answer.events import ThoughtWritten, Token, TokenRole, Withdraw
from service.answer.inquiry import OpenStep, Scope
from service.core.domain import CallUsage, StepKind


@dataclass(slots=True)
class StepEmitter:
    """Opens steps and emits their events; at most one step is open.

    `answer` is the text of the answer's tokens that are not withdrawn, `owed` the cost of calls
    that have not been charged to a step yet.
    """

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
        """Return a step that is never shown. It counts a call until that can be charged to a shown
        step.
        """
        return OpenStep(self.scope.inquiry, "", "retrieve")

    async def open(self, kind: StepKind, question: str, thought: str | None) -> OpenStep:
        """End the open step and start the next one, which is charged with the owed cost."""
        await self._end()
        step = self.step = self.scope.step(kind, question)
        self.drafted = False
        self._charge(step)
        await step.start()
        if thought:
            await step.emit(ThoughtWritten(text=thought))
        return step

    async def open_answer(self, thought: str | None) -> OpenStep:
        """Return the step in which the answer is written; start it if it is not open."""
        if self.step is not None and self.step.kind == "answer":
            return self.step
        return await self.open("answer", self.question, thought)

    def read(self, thought: str | None) -> None:
        """Set the reasoning on the documents of the open retrieval."""
        if self.step is not None and self.step.kind == "retrieve":
            self.step.answer = thought

    async def draft(self, text: str) -> None:
        """Emit reasoning as a draft, in the step whose documents it is about."""
        if self.step is not None and self.step.kind != "answer":
            self.drafted = True
            await self.step.emit(Token(role="draft", text=text))

    async def write(self, text: str, thought: str | None) -> None:
        """Emit more of the answer."""
        if text:
            step = await self.open_answer(thought)
            self.answer += text
            await step.emit(Token(role=self.as_role, text=text))

    async def withdraw(self, reason: Literal["restart", "repair"] = "restart") -> None:
        """Withdraw what was written of the answer."""
        if self.answer and self.step is not None:
            self.answer = ""
            await self.step.emit(Withdraw(role=self.as_role, reason=reason))

    async def decline(self) -> None:
        """Withdraw an answer that says that there is none."""
        if self.step is not None:
            self.step.flag("declined")
        await self.withdraw("repair")

    async def restart(self) -> None:
        """Withdraw the turn in progress, which will be written again."""
        await self.withdraw()
        if self.drafted and self.step is not None and self.step.kind == "retrieve":
            await self.step.emit(Withdraw(role="draft", reason="restart"))

    async def close(self) -> str | None:
        """End the last step with the remaining answer, and return that. The step is charged with
        the owed cost; calls that opened no step get one of their own.
        """
        if self.writes_answer and self.step is not None:
            self.step.answer = self.answer or None
        if self.step is None and self.owed.llm_calls:
            await self.open_answer(None)
        if self.step is not None:
            self._charge(self.step)
        await self._end()
        return self.answer or None

    def _charge(self, step: OpenStep) -> None:
        step.charge(self.owed)
        self.owed = CallUsage()

    async def _end(self) -> None:
        step, self.step = self.step, None
        if step is not None:
            await step.end()
