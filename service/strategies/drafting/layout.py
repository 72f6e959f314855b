"""The prompt of a draft: demonstrations, passages, the question, the text so far (METHODS.md §3.3).

It is raw text in this order, so that each draft's prompt begins with the previous one, and every
question's with the demonstrations. If the profile lets the model decline, a demonstration of that
comes first, where it has least influence; it is a separate file, because the published prompts have
none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from service.engines.signals import Span
from service.prompts.quoting import quote
from service.prompts.templates import DRAGIN_DECLINING, TemplateSet
from service.text import sentences

ROLES: Final = ("dragin_demonstrations", "dragin_case", "dragin_context")
_MARK: Final = "\ue0d7"  # private-use character: the place of the question in its template
_DEMONSTRATION = re.compile(r"\n(?=Question:)")
_NUMBERED = re.compile(r"\[(\s*\d+\s*)\]")


def lacking_template(templates: TemplateSet, roles: Sequence[str]) -> str | None:
    """Return the file that a folder of templates lacks, or None."""
    absent = [role for role in roles if not templates.has(role)]
    return f"the templates in {templates.folder} have no {absent[0]}.txt" if absent else None


@dataclass(frozen=True, slots=True)
class DraftPrompt:
    """A prompt. `question` and `written` (the text so far) are their spans in `text`."""

    text: str
    question: Span
    written: Span


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a prompt; `passages` as they are shown, without their numbers."""

    templates: TemplateSet
    demonstrations: tuple[str, ...]
    question: str
    written: str = ""
    passages: tuple[str, ...] = ()

    def shots(self) -> str:
        """Return the demonstrations, with which every prompt begins."""
        return "".join(f"{demonstration}\n" for demonstration in self.demonstrations)

    def prompt(self) -> DraftPrompt:
        before = self.shots()
        if self.passages:
            lines = [f"[{n}] {passage}\n" for n, passage in enumerate(self.passages, 1)]
            before += self.templates.render("dragin_context", passages="".join(lines)) + "\n"
        opening = self.templates.render("dragin_case", question=_MARK).index(_MARK)
        case = self.templates.render("dragin_case", question=self.question)
        asked = len(before) + opening
        text = f"{before}{case} {self.written}" if self.written else before + case
        return DraftPrompt(
            text,
            (asked, asked + len(self.question)),
            (len(text) - len(self.written), len(text)),
        )

    def shorter(self) -> Iterator[Layout]:
        """Yield ever shorter layouts: with fewer passages, with fewer sentences of the last one,
        without it, and with fewer demonstrations, of which the last is removed last."""
        layout = self
        while len(layout.passages) > 1:
            layout = replace(layout, passages=layout.passages[:-1])
            yield layout
        if layout.passages:
            (passage,) = layout.passages
            for begin, _ in reversed(sentences(passage)[1:]):
                yield replace(layout, passages=(passage[:begin].rstrip(),))
            layout = replace(layout, passages=())
            yield layout
        while layout.demonstrations:
            layout = replace(layout, demonstrations=layout.demonstrations[1:])
            yield layout


def opening_layout(templates: TemplateSet, question: str, *, may_decline: bool = False) -> Layout:
    """Return the layout of the first draft, with nothing written or retrieved yet."""
    text = demonstrations_text(templates, may_decline=may_decline)
    demonstrations = tuple(_DEMONSTRATION.split(text)) if text.strip() else ()
    return Layout(templates, demonstrations, as_data(question))


def demonstrations_text(templates: TemplateSet, *, may_decline: bool) -> str:
    """Return the demonstrations, one for each question, and with `may_decline` the one that
    declines, if the template set has it."""
    text = templates.render("dragin_demonstrations")
    if may_decline and templates.has(DRAGIN_DECLINING):
        return f"{templates.render(DRAGIN_DECLINING)}\n{text}"
    return text


def shown(passages: Sequence[str]) -> tuple[str, ...]:
    """Return passages as data. One without text has no line (METHODS.md §3.2, failures)."""
    return tuple(line for line in map(as_data, passages) if line)


def as_data(text: str) -> str:
    """Return one line that cannot be read as structure of the prompt, nor a `[2]` in it as a
    passage's number.
    """
    return _NUMBERED.sub(r"(\1)", quote(text))
