"""Rows of the Revelator's tasks (METHODS.md §1.5), each in the very prompt that serves its role."""

from __future__ import annotations

import json
from collections.abc import Sequence

from service.core.domain import Passage, RouteName
from service.prompts.quoting import quote
from service.prompts.templates import Pair, PassageText, TemplateSet
from service.strategies.revelator.roles import ROUTE_LABELS
from service.workshop.synthesis.contract import Row, Source


class Rows:
    """Makes rows with the prompts of one template set; targets are what the role's reader reads."""

    def __init__(self, templates: TemplateSet) -> None:
        self.templates = templates

    def route(self, question: str, route: RouteName, source: Source) -> Row:
        return _row("route", question, self.templates.route(question), ROUTE_LABELS[route], source)

    def decompose(self, question: str, parts: Sequence[str], source: Source) -> Row:
        """The training tuples have no `thought` (METHODS.md §1.4 #7): a fixed phrase says how
        much is asked."""
        lines = [quote(part) for part in parts]
        target = {"thought": f"asks {len(parts)} things", "decomposition": lines}
        prompt = self.templates.decompose(question)
        text = json.dumps(target, ensure_ascii=False)
        return _row("decompose", question, prompt, text, source)

    def refine(self, question: str, history: Sequence[Pair], target: str, source: Source) -> Row:
        prompt = self.templates.refine(question, history)
        return _row("refine", question, prompt, quote(target), source)

    def ending(self, question: str, history: Sequence[Pair], done: bool, source: Source) -> Row:
        prompt = self.templates.ending(question, history)
        return _row("ending", question, prompt, "yes" if done else "no", source)

    def relevance(self, question: str, passage: Passage, relevant: bool, source: Source) -> Row:
        prompt = self.templates.relevance(question, PassageText(passage.title, passage.text))
        return _row("relevance", question, prompt, "true" if relevant else "false", source)


def _row(task: str, question: str, prompt: str, target: str, source: Source) -> Row:
    messages = [
        {"role": "user", "content": prompt, "learn": False},
        {"role": "assistant", "content": target, "learn": True},
    ]
    return Row({"task": task, "question": question, "messages": messages}, source)


def prompt_of(row: Row) -> str:
    return str(row.fields["messages"][0]["content"])


def target_of(row: Row) -> str:
    return str(row.fields["messages"][-1]["content"])
