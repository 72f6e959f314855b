"""The `Loop` protocol: a method that answers a question with retrievals of its own choice."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from service.answer.calls import Role, Roles
from service.answer.events import TokenRole
from service.answer.inquiry import Scope
from service.core.domain import LoopName, StoppedBy
from service.core.settings import Settings


class Outcome(NamedTuple):
    """How a route or a loop ended: its answer, or None, and what stopped it."""

    answer: str | None
    stopped_by: StoppedBy = "answer"


class Loop(Protocol):
    """A method that answers `question` in steps of `scope`, which emit its events. The tokens of
    the answer have the role `as_role`.

    When time or budget runs out, a loop answers from what it has found. Raises LimitReached,
    EngineFailure and RetrievalFailure.
    """

    name: LoopName

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome: ...


@runtime_checkable
class Demanding(Protocol):
    """A loop that needs more than every deployment has."""

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        """Return what is missing and how to obtain it, or None if the loop can run."""


def lacking_logprobs(reader: Role) -> str | None:
    """Return what to do if the reader's engine reports no probabilities, None if it does."""
    if reader.generator.capabilities.logprobs:
        return None
    return (
        f"the engine {reader.generator.name!r} of roles.reader does not report the "
        "probabilities of its tokens; use an engine that does, such as one of kind embedded, "
        "local or vllm"
    )
