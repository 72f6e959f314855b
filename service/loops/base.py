"""The `Loop` protocol: a method that answers one question by retrieving as it sees fit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from service.calling import Roles
from service.domain import LoopName
from service.events import BaseEvent, TokenRole
from service.inquiry import Scope
from service.settings import Settings


class Loop(Protocol):
    """Answers `question` in steps of `scope`; the answer's tokens carry `as_role`.

    The last event is `Stop` (without citations); the answer is that of the last `StepEnd`, None
    when there is none. What is at hand when time or budget runs out is answered from. Raises
    `EngineFailure` and `RetrievalFailure`.
    """

    name: LoopName

    def run(self, scope: Scope, question: str, as_role: TokenRole) -> AsyncIterator[BaseEvent]: ...


@runtime_checkable
class Demanding(Protocol):
    """A loop that not every deployment can run."""

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        """What is lacking, and how to have it; None where the loop can run."""
