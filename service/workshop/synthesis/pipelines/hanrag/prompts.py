"""The teacher's prompts. It judges with the one that serves, as the paper has it; with the rules
and shots, for a teacher is no tuned model."""

from __future__ import annotations

from typing import Final

from service.prompts.templates import SHIPPED
from service.workshop.synthesis.prompts import Prompts

PROMPTS: Final = Prompts("hanrag", shared=(SHIPPED / "full" / "relevance.txt",))
