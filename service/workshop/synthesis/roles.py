"""The prompts and replies of the Revelator's roles in training rows (METHODS.md §1.3, §1.5)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from service.core.domain import RouteName
from service.prompts.quoting import quote
from service.prompts.templates import Pair, PassageText, TemplateSet
from service.strategies.planner import ROUTE_LABELS


class Exchange(NamedTuple):
    """A prompt of the user, and the reply that the model should write."""

    user: str
    assistant: str


class RoleTurns:
    """Creates exchanges with the prompts of one template set and replies in the role's format."""

    def __init__(self, templates: TemplateSet) -> None:
        self.templates = templates

    def route(self, question: str, route: RouteName) -> Exchange:
        return Exchange(self.templates.route(question), ROUTE_LABELS[route])

    def decompose(self, question: str, parts: Sequence[str]) -> Exchange:
        """Return a decomposition.

        The tuples of the paper have no `thought` (METHODS.md §1.4 #7), so a fixed phrase states the
        number of things asked.
        """
        thought = f"asks {len(parts)} thing{'s' if len(parts) != 1 else ''}"
        value = {"thought": thought, "decomposition": [quote(part) for part in parts]}
        return Exchange(self.templates.decompose(question), json.dumps(value, ensure_ascii=False))

    def refine(self, question: str, history: Sequence[Pair], target: str) -> Exchange:
        return Exchange(self.templates.refine(question, history), quote(target))

    def ending(self, question: str, history: Sequence[Pair], done: bool) -> Exchange:
        return Exchange(self.templates.ending(question, history), "yes" if done else "no")

    def relevance(self, question: str, text: PassageText, relevant: bool) -> Exchange:
        return Exchange(self.templates.relevance(question, text), "true" if relevant else "false")
