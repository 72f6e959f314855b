"""The baseline `fixed_length` (FLR): retrieve every n tokens (METHODS.md §7.4)."""

from __future__ import annotations

from service.answer.calls import Roles
from service.answer.events import TokenRole
from service.answer.inquiry import Scope
from service.core.domain import LoopName
from service.core.settings import Settings
from service.strategies.base import Outcome
from service.strategies.drafting.chain import WholeText
from service.strategies.drafting.windows import missing, run_windows


class FixedLength:
    """Searches for the last n tokens, and writes the next n from what was found."""

    name: LoopName = "fixed_length"

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        return missing(roles, settings)

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        tokens = scope.inquiry.settings.baselines.window
        return await run_windows(scope, question, as_role, lambda _: WholeText(), tokens)
