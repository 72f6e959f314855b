"""The baseline `one_retrieval`: search once with the question, then read (METHODS.md §7.2)."""

from __future__ import annotations

from service.answer.events import TokenRole
from service.answer.inquiry import Scope
from service.core.domain import LoopName
from service.strategies.anrag import retrieve_and_answer
from service.strategies.base import Outcome


class OneRetrieval:
    """Shows the reader the best-ranked passages of one search; nothing judges them."""

    name: LoopName = "one_retrieval"

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        step = scope.only_step("retrieve", question)
        await step.start()
        await retrieve_and_answer(step, question, as_role, judged=False)
        await step.end()
        return Outcome(step.answer, step.stopped_by)
