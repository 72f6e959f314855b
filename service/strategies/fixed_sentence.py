"""The baseline `fixed_sentence` (FSR): retrieve for every sentence (METHODS.md §7.5)."""

from __future__ import annotations

from service.answer.calls import Roles
from service.answer.events import TokenRole
from service.answer.inquiry import Scope
from service.core.domain import LoopName
from service.core.settings import Settings
from service.strategies.base import Outcome
from service.strategies.drafting.chain import FirstSentence
from service.strategies.drafting.windows import missing, run_windows


class FixedSentence:
    """Searches for the last sentence, and writes the next one from what was found."""

    name: LoopName = "fixed_sentence"

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        return missing(roles, settings)

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        return await run_windows(scope, question, as_role, FirstSentence)
