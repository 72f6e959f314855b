"""The prompt of a draft, and the text of its chain of thought (METHODS.md §3.2, §3.3, §3.6). Pure.

A prompt has demonstrations, passages, the question and the text so far. It is raw text in this
order, so that each draft's prompt begins with the previous one, and every question's with the
demonstrations. If the profile lets the model decline, a demonstration of that
comes first, where it has least influence; it is a separate file, because the published prompts have
none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from service.engines.base import Delta, FinishReason
from service.engines.signals import Span
from service.prompts.quoting import quote
from service.prompts.templates import DRAGIN_DECLINING, NO_ANSWER, TemplateSet, is_example
from service.text import sentences
from service.text.tagging import Splitter

PHRASE: Final = "the answer is"
_STATED: Final = re.compile("[Tt]he answer is")
CONCLUSION: Final = "So the answer is"
ANSWER_TOKENS: Final = 20
LONG: Final = 3  # words of a sentence that is not repeated by chance
_OVERRUN: Final = ("Question:", "#10000000", "Note:", "\n")
_MARKUP = re.compile(r"(\*{1,3}|_{1,3}|`{1,3})(?=\S)(.+?)(?<=\S)\1")

ROLES: Final = ("dragin_demonstrations", "dragin_case", "dragin_context")
_MARK: Final = "\ue0d7"  # private-use character: the place of the question in its template
_DEMONSTRATION = re.compile(r"\n(?=Question:)")
_NUMBERED = re.compile(r"\[(\s*\d+\s*)\]")


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

    def borrows(self, text: str) -> bool:
        """Whether the model copied `text`, or a name in it, from a demonstration, and neither the
        question nor the passages have it. The model's own earlier words do not count."""
        return is_example(text, self.shots(), "\n".join([self.question, *self.passages]))

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
    """Return the layout of the first draft, with nothing written or retrieved yet. With
    `may_decline`, the demonstration that declines comes first, if the template set has it."""
    text: str = templates.render("dragin_demonstrations")
    if may_decline and templates.has(DRAGIN_DECLINING):
        text = f"{templates.render(DRAGIN_DECLINING)}\n{text}"
    demonstrations = tuple(_DEMONSTRATION.split(text)) if text.strip() else ()
    return Layout(templates, demonstrations, as_data(question))


def as_data(text: str) -> str:
    """Return one line that cannot be read as structure of the prompt, nor a `[2]` in it as a
    passage's number.
    """
    return _NUMBERED.sub(r"(\1)", quote(text))


# ---- the text of a chain of thought


def join(*parts: str) -> str:
    """Join the parts that are not empty by single spaces (METHODS.md §3.2)."""
    return " ".join(part for part in (part.strip() for part in parts) if part)


def cut_overrun(text: str) -> str:
    """Return the text up to where the model continued after its answer: another question, a note,
    or a line.
    """
    text = text.strip()
    ends = [place for mark in _OVERRUN if (place := text.find(mark)) > 0]
    return text[: min(ends, default=len(text))].rstrip()


def at_answer(text: str, *, exact: bool = False) -> tuple[str, str] | None:
    """Return what is before and after the first "the answer is", in lower case if `exact`, as in
    the published code. None if the text states no answer."""
    found = re.search(PHRASE, text) if exact else _STATED.search(text)
    return (text[: found.start()], text[found.end() :]) if found else None


def stated_answer(text: str, *, exact: bool = False) -> str | None:
    """Return what follows "the answer is", without a colon before it, a final full stop and the
    Markdown around it. None if nothing follows."""
    stated = at_answer(text, exact=exact)
    return _bare(_bare(stated[1]).lstrip(":")) or None if stated else None


def unconcluded(text: str) -> str:
    """Return the text up to its conclusion, or all of it if it has none."""
    text = cut_overrun(text)
    stated = at_answer(text)
    return stated[0].rstrip().removesuffix("So").rstrip() if stated else text


def repeats(sentences: Sequence[str]) -> bool:
    """Whether a sentence of at least three words occurs twice."""
    words = [tuple(sentence.casefold().split()) for sentence in sentences]
    long = [word for word in words if len(word) >= LONG]
    return len(set(long)) < len(long)


def declines(text: str) -> bool:
    """Whether the text concludes that there is no answer, in the words of the prompts."""
    answer = stated_answer(cut_overrun(text)) or ""
    return answer.casefold().startswith(NO_ANSWER)


def _bare(text: str) -> str:
    """Remove the final full stop, inside or outside of mark-up around the whole text."""
    text = text.strip().removesuffix(".").rstrip()
    while (wrapped := _MARKUP.fullmatch(text)) and wrapped[1] not in wrapped[2]:
        text = wrapped[2].removesuffix(".").rstrip()
    return text


class Continuation:
    """What one call writes. All of it counts or, with a `splitter`, its first sentence.

    `take` every delta until it is `done`, then `finish`; both return what can be shown. A sentence
    is complete once a whole word of the next one has come; a splitter that is not incremental
    needs the whole text. A sentence of fewer than `least` letters is continued by the next. `text`
    is all that was written, without the white space before it. `finish_reason` is None if the call
    was ended early.
    """

    def __init__(self, splitter: Splitter | None = None, least: int = 0) -> None:
        self.text = ""
        self.done = False
        self.pieces: list[Delta] = []
        self.finish_reason: FinishReason | None = None
        self.whole = splitter is None
        self._splitter, self._least = splitter, least
        self._counts, self._shown = "", 0

    @property
    def kept(self) -> str:
        """The part that counts so far."""
        return self._counts.rstrip()

    @property
    def tokens(self) -> list[Delta]:
        """The deltas of what is kept, usually a token each: those that begin before its end."""
        text = "".join(piece.text for piece in self.pieces)
        end = len(text) - len(text.lstrip()) + len(self.kept)
        starts = accumulate((len(piece.text) for piece in self.pieces), initial=0)
        return [piece for piece, start in zip(self.pieces, starts, strict=False) if start < end]

    @property
    def over(self) -> bool:
        """Whether the model has ended its text."""
        return self.finish_reason == "stop" and self.kept == self.text.rstrip()

    def take(self, delta: Delta) -> str:
        if delta.text:
            self.pieces.append(delta)
        self.finish_reason = delta.finish or self.finish_reason
        self.text = (self.text + delta.text).lstrip()
        if self._splitter is None:
            return self._show(self.text)
        words, space, _ = self.text.rpartition(" ")
        if not space or not self._splitter.incremental:
            return ""
        count, sentence = self._first(self._splitter, words)
        self.done = count > 1
        return self._show(sentence)

    def finish(self) -> str:
        self.done = True
        return self._show(
            self._first(self._splitter, self.text)[1] if self._splitter else self.text
        )

    def _first(self, splitter: Splitter, text: str) -> tuple[int, str]:
        """Return the number of sentences from the first that is long enough on, and the text up to
        its end."""
        found = splitter.sentences(text)
        end = 0
        for number, sentence in enumerate(found):
            end = text.index(sentence, end) + len(sentence)
            if end >= self._least:
                return len(found) - number, text[:end]
        return 0, text.rstrip()

    def _show(self, counts: str) -> str:
        self._counts = counts
        begin, self._shown = self._shown, max(self._shown, len(counts))
        return counts[begin:]
