"""The baseline `entropy_gate`: retrieve once if the closed-book answer is unsure (METHODS.md §7.3).

The gate is the mean surprisal of the answer's tokens, −log p in nats, which is what greedy decoding
reveals of their entropy. The threshold is given as a probability: its −log is the threshold in
nats.
"""

from __future__ import annotations

from service.answer.calls import Roles
from service.answer.events import TokenRole, Withdraw
from service.answer.inquiry import Scope
from service.core.domain import LoopName
from service.core.settings import Settings
from service.strategies.anrag import retrieve_and_answer
from service.strategies.base import Outcome, lacking_logprobs
from service.strategies.direct import answer_from_memory


class EntropyGate:
    """Answers closed book, and keeps that answer if the model is sure of it."""

    name: LoopName = "entropy_gate"

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        """Return what this deployment lacks for the loop, or None if it can run."""
        return lacking_logprobs(roles.reader)

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        """Answer closed book. An unsure answer is withdrawn before the search; at a limit of the
        question it is kept.
        """
        step = scope.step("answer", question)
        step.weighed = True
        await step.start()
        await answer_from_memory(step, question, as_role)
        threshold = scope.inquiry.settings.baselines.gate
        sure = is_sure(step.answer, step.probability, threshold)
        if sure or step.stopped_by != "answer":
            await step.end()
            return Outcome(step.answer, step.stopped_by)
        if step.answer:
            await step.emit(Withdraw(role=as_role, reason="trigger"))
        step.flags.remove("closed_book")
        step.answer = None
        await step.end()
        retrieval = scope.step("retrieve", question)
        await retrieval.start()
        await retrieve_and_answer(retrieval, question, as_role, judged=False)
        await retrieval.end()
        return Outcome(retrieval.answer, retrieval.stopped_by)


def is_sure(answer: str | None, probability: float | None, threshold: float) -> bool:
    """Return whether a closed-book answer is accepted: there is one, and the geometric mean of its
    tokens' probabilities is at least `threshold`. An unknown probability counts as unsure."""
    return bool(answer) and probability is not None and probability >= threshold
