"""The baseline `no_retrieval`: the answer from the model's own knowledge (METHODS.md §7.1)."""

from __future__ import annotations

from service.answer.events import TokenRole
from service.answer.inquiry import Scope
from service.core.domain import LoopName
from service.strategies.base import Outcome
from service.strategies.direct import answer_from_memory


class NoRetrieval:
    """Answers closed book. Nothing is searched, so the answer is given without support."""

    name: LoopName = "no_retrieval"

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        step = scope.only_step("answer", question)
        await step.start()
        await answer_from_memory(step, question, as_role)
        await step.end()
        return Outcome(step.answer, step.stopped_by)
