"""The `Loop` protocol: a method that answers a question with retrievals of its own choice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from service.answer.calls import Roles
from service.answer.events import BaseEvent, TokenRole
from service.answer.inquiry import Scope
from service.core.domain import LoopName
from service.core.settings import Settings


class Loop(Protocol):
    """Answers `question` in steps of `scope`. The tokens of the answer have the role `as_role`.

    The last event is `Stop` (without citations). The answer is that of the last `StepEnd`, or None
    if there is none. When time or budget runs out, the loop answers from what it has found. Raises
    `EngineFailure` and `RetrievalFailure`.
    """

    name: LoopName

    def run(self, scope: Scope, question: str, as_role: TokenRole) -> AsyncIterator[BaseEvent]: ...


@runtime_checkable
class Demanding(Protocol):
    """A loop that needs more than every deployment has."""

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        """Return what is missing and how to obtain it, or None if the loop can run."""
