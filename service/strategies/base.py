"""What all methods share: one object answers one question with retrievals of its own choice."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import ClassVar

from service.answer.calls import Role, Roles
from service.answer.events import TokenRole
from service.answer.inquiry import OpenStep, Scope
from service.core.domain import LoopName, StepKind, StoppedBy
from service.core.errors import LimitReached
from service.core.settings import Settings
from service.prompts.templates import TemplateSet


class Method:
    """A method at work on one question, in steps of `scope`, which emit its events. The tokens of
    its answer have the role `as_role`. A limit of the question that was reached is `stopped_by`.

    `open_step` is the step that `open` started last; one without an id was never shown.

    `raw`: it continues a raw text, without the turns of a chat. `sampled`: its answer may be
    decided by a vote. `needs` are the templates without which it cannot run.
    """

    name: ClassVar[LoopName]
    raw: ClassVar[bool] = False
    sampled: ClassVar[bool] = False
    needs: ClassVar[Sequence[str]] = ()

    def __init__(self, scope: Scope, question: str, as_role: TokenRole = "answer") -> None:
        self.scope, self.question, self.as_role = scope, question, as_role
        self.inquiry = scope.inquiry
        self.request, self.reader = self.inquiry.request, self.inquiry.roles.reader
        self.templates, self.able = self.reader.templates, self.reader.generator.capabilities
        self.stopped_by: StoppedBy = "answer"
        self.open_step = OpenStep(self.inquiry, "", "route")

    @classmethod
    def missing(cls, roles: Roles, settings: Settings) -> str | None:
        """Return what this deployment lacks for the method and how to obtain it, or None."""
        return lacking_template(roles.reader.templates, cls.needs)

    async def run(self) -> str | None:
        """Answer the question; when time or budget runs out, from what was found. Return the
        answer; what stopped it is `stopped_by`. Raises LimitReached, EngineFailure and
        RetrievalFailure."""
        raise NotImplementedError

    async def instead(self, method: Method) -> str | None:
        """Let another method answer, and end as it does."""
        answer = await method.run()
        self.stopped_by = method.stopped_by
        return answer

    @property
    def final(self) -> bool:
        """Whether the answer is that of the whole question, which may use the reserve; a part of a
        compound question leaves it to the merge."""
        return self.as_role == "answer"

    def may_go_on(self, steps: int = 0, most: float = math.inf) -> bool:
        """Whether the limits of the question allow another step, after so many `steps` of at `most`
        so many. If not, `stopped_by` says why."""
        why = self.inquiry.budget.exhausted() or ("max_steps" if steps >= most else None)
        self.stopped_by = why or self.stopped_by
        return why is None

    @contextmanager
    def limited(self) -> Iterator[None]:
        """A limit of the question that is reached within ends it, and stops the method."""
        try:
            yield
        except LimitReached as limit:
            self.stopped_by = limit.stopped_by

    @asynccontextmanager
    async def within(self, step: OpenStep) -> AsyncIterator[OpenStep]:
        """Start a step and end it. The limit of the question that ended it stops the method."""
        async with step:
            yield step
        if step.stopped_by != "answer":
            self.stopped_by = step.stopped_by

    async def open(self, kind: StepKind, question: str | None = None) -> OpenStep:
        """End the open step and start the next."""
        if self.open_step.id:
            await self.open_step.end()
        self.open_step = self.scope.step(kind, question or self.question)
        await self.open_step.start()
        return self.open_step

    def step(self, kind: StepKind) -> AbstractAsyncContextManager[OpenStep]:
        """Return a step about the question, which is open within the context."""
        return self.within(self.scope.step(kind, self.question))


def lacking_template(templates: TemplateSet, roles: Sequence[str]) -> str | None:
    """Return the file that a folder of templates lacks, or None."""
    absent = [role for role in roles if not templates.has(role)]
    return f"the templates in {templates.folder} have no {absent[0]}.txt" if absent else None


def lacking_logprobs(reader: Role) -> str | None:
    """Return what to do if the reader's engine reports no probabilities, None if it does."""
    if reader.generator.capabilities.logprobs:
        return None
    return (
        f"the engine {reader.generator.name!r} of roles.reader does not report the "
        "probabilities of its tokens; use an engine that does, such as one of kind embedded, "
        "local or vllm"
    )
