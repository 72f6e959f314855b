"""The content of an assistant turn (METHODS.md §2.3), complete or while it is being written. Pure.

Markers are matched in any case, and the last one counts (METHODS.md §2.4 #3). Asterisks that
untuned models put around them are ignored. The output of tuned models is read as the paper's code
reads it, with a marker anywhere. For other models a marker counts only at the start of a line, and
its text ends with the line, because they write prose around it and continue with the next example.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

_FLAGS = re.IGNORECASE | re.MULTILINE
_COLON = r"\*{0,2}\s*[:：]"


class Form(NamedTuple):
    """How markers are found. `lines`: only at the start of a line, and their text ends with it."""

    lines: bool
    query: re.Pattern[str]
    refined: re.Pattern[str]
    final: re.Pattern[str]
    final_prose: re.Pattern[str]
    first: re.Pattern[str]


ANYWHERE: Final = Form(
    lines=False,
    query=re.compile(rf"query{_COLON}", _FLAGS),
    refined=re.compile(rf"refined query{_COLON}", _FLAGS),
    final=re.compile(rf"final answer{_COLON}", _FLAGS),
    final_prose=re.compile(r"final answer is\b\s*[:：]?", _FLAGS),
    first=re.compile(
        rf"[\s*]*(?:(?:(?:initial|refined) )?query{_COLON}|final answer{_COLON})", _FLAGS
    ),
)
_LINE = r"^[ \t>*_]*"
_KIND = r"(?:(?:initial|refined|search|new|next|first) )?"
_LEAD = r"(?:(?:so|thus|hence|therefore)\b,?[ \t]*)?"
AT_LINES: Final = Form(
    lines=True,
    query=re.compile(rf"{_LINE}{_KIND}query{_COLON}", _FLAGS),
    refined=re.compile(rf"{_LINE}refined query{_COLON}", _FLAGS),
    final=re.compile(rf"{_LINE}final answer{_COLON}", _FLAGS),
    final_prose=re.compile(rf"{_LINE}{_LEAD}(?:the|my|our) final answer is\b\s*[:：]?", _FLAGS),
    first=re.compile(rf"\s*{_LINE}(?:{_KIND}query{_COLON}|final answer{_COLON})", _FLAGS),
)
_RULER = re.compile(r"^\s*#{3,}\s*$", re.MULTILINE)
_LABEL = re.compile(
    r"\A[\s*]*(?:analysis|intermediate answer(?:_\d+)?)\*{0,2}\s*[:：]\s*(?:\*\*\s*)?",
    re.IGNORECASE,
)
_AFTER_QUERY = re.compile(
    r"(?:final answer|initial query|refined query)\*{0,2}\s*[:：]"
    r"|(?:retrieved document|intermediate answer)(?:_\d+)?\s*[:：]|###",
    re.IGNORECASE,
)
_PADDING_CHARACTERS: Final = frozenset(" \t\n\r\f\v*")
_PADDING = re.compile(r"[ \t\n\r\f\v*]+")
_MARKERS: Final = ("initialquery:", "refinedquery:", "query:", "finalanswer:")
_BEGINNINGS: Final = [(m[:size], size) for m in _MARKERS for size in range(len(m) + 1)]
_LONGEST_MARKER: Final = 40  # with room for asterisks and spaces


class Turn(NamedTuple):
    """One assistant turn.

    `thought`: the reasoning before the first marker, without its label. `query`: after the last
    `Query:` of any kind. `refined`: after the last `Refined Query:`. `final`: after the last
    `Final Answer:`. A field that is absent or empty is None.
    """

    thought: str | None
    query: str | None
    refined: str | None
    final: str | None


def read_turn(text: str, form: Form = ANYWHERE) -> Turn:
    """Read a whole turn."""
    text = _own_part(text, form)
    return Turn(
        thought=_thought(text, form),
        query=_query_after(form.query, text, form),
        refined=_query_after(form.refined, text, form),
        final=_final(text, form),
    )


def _own_part(text: str, form: Form, ended: bool = True) -> str:
    """Return the turn without what an untuned model writes after a line of ``###``: other examples.

    While it is being written, an end that may become such a line is not part of it yet.
    """
    if not form.lines:
        return text
    ruler = _RULER.search(text)
    own = text[: ruler.start()] if ruler else text
    return own if ended else own.rstrip("# \t")


def _value(text: str, form: Form) -> str:
    """Return the text after a marker; of several lines the first that is not empty."""
    if not form.lines:
        return text
    text = text.lstrip()
    return "" if form.first.match(text) else text.partition("\n")[0]


def _thought(text: str, form: Form) -> str | None:
    marker = form.first.search(text)
    reasoning = text[: marker.start()] if marker else text
    return _LABEL.sub("", reasoning).strip() or None


def _last_end(marker: re.Pattern[str], text: str, start: int = 0) -> int | None:
    ends = [match.end() for match in marker.finditer(text, start)]
    return ends[-1] if ends else None


def _query_after(marker: re.Pattern[str], text: str, form: Form) -> str | None:
    start = _last_end(marker, text)
    if start is None:
        return None
    query = _value(text[start:], form)
    if structure := _AFTER_QUERY.search(query):
        query = query[: structure.start()]
    query = query.replace("[Dense]", "").replace("**", "")  # [Dense]: METHODS.md §2.2, line 7
    return " ".join(query.split()) or None


def _final(text: str, form: Form) -> str | None:
    start = _last_end(form.final, text)
    if start is None:
        start = _last_end(form.final_prose, text)
    return None if start is None else _tidy(_value(text[start:], form)) or None


def _tidy(answer: str) -> str:
    answer = answer.strip().removeprefix("**").lstrip()
    return answer.removesuffix("**").rstrip()


class TurnPiece(NamedTuple):
    """Text to show while a turn is written. `void` means that the answer so far was none."""

    kind: Literal["draft", "answer", "void"]
    text: str = ""


class TurnStream:
    """Separates a turn's reasoning from its answer while the turn is written.

    Reasoning up to the first marker is `draft`, text after `Final Answer:` is `answer`. A query
    takes precedence over an answer (METHODS.md §2.2, line 4), and of two answers the last one
    counts: both void what was shown. What may become a marker is held back, so that the pieces of
    kind `answer` after the last `void`, joined, equal the `final` of `read_turn`. (Prose without a
    marker, "the final answer is …", is only read at the end.)
    """

    def __init__(self, form: Form = ANYWHERE) -> None:
        self.text = ""
        self._form = form
        self._drafted = 0
        self._answer = ""
        self._answer_from: int | None = None

    def feed(self, text: str) -> list[TurnPiece]:
        """Take the next piece of the turn. Return what can be shown."""
        self.text += text
        return [*self._draft(ended=False), *self._answers(ended=False)]

    def finish(self) -> list[TurnPiece]:
        """The turn is complete. Return what was held back."""
        return [*self._draft(ended=True), *self._answers(ended=True)]

    def _draft(self, ended: bool) -> list[TurnPiece]:
        text = _own_part(self.text, self._form, ended)
        marker = self._form.first.search(text, self._line)
        known = marker.start() if marker else len(_known(text, ended))
        fresh, self._drafted = text[self._drafted : known], max(self._drafted, known)
        return [TurnPiece("draft", fresh)] if fresh else []

    @property
    def _line(self) -> int:
        """Return the start of the line in which the shown reasoning ends: no marker begins before
        it.
        """
        return self.text.rfind("\n", 0, self._drafted) + 1 if self._form.lines else self._drafted

    def _answers(self, ended: bool) -> list[TurnPiece]:
        text, form = _own_part(self.text, self._form, ended), self._form
        asks = form.query.search(text, self._line)
        start = None if asks else _last_end(form.final, text, self._line)
        pieces: list[TurnPiece] = []
        if start != self._answer_from:
            pieces += [TurnPiece("void")] if self._answer else []
            self._answer, self._answer_from = "", start
        if start is not None:
            answer = _tidy(_value(_known(text[start:], ended), form))
            fresh, self._answer = answer[len(self._answer) :], answer
            pieces += [TurnPiece("answer", fresh)] if fresh else []
        return pieces


def _known(text: str, ended: bool) -> str:
    """Return `text` without an end that may become part of a marker or turn out to be padding."""
    if ended:
        return text
    tail = _PADDING.sub("", text[-_LONGEST_MARKER:]).lower()
    held = max(size for beginning, size in _BEGINNINGS if tail.endswith(beginning))
    end = len(text)
    while end and (held or text[end - 1] in _PADDING_CHARACTERS):
        end -= 1
        held -= text[end] not in _PADDING_CHARACTERS
    return text[:end]
