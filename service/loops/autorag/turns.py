"""What an assistant turn says (methods §2.3), whole or while it is being written; no I/O.

Markers are matched whatever their case and the last one counts (§2.4 #3); asterisks that untuned
models put around them are passed over.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

_QUERY = re.compile(r"query\*{0,2}\s*[:：]", re.IGNORECASE)
_REFINED = re.compile(r"refined query\*{0,2}\s*[:：]", re.IGNORECASE)
_FINAL = re.compile(r"final answer\*{0,2}\s*[:：]", re.IGNORECASE)
_FINAL_PROSE = re.compile(r"final answer is\b\s*[:：]?", re.IGNORECASE)
_FIRST_MARKER = re.compile(
    r"[\s*]*(?:(?:(?:initial|refined) )?query\*{0,2}\s*[:：]|final answer\*{0,2}\s*[:：])",
    re.IGNORECASE,
)
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
    `Final Answer:`. What is absent or empty is None.
    """

    thought: str | None
    query: str | None
    refined: str | None
    final: str | None


def read_turn(text: str) -> Turn:
    """Read a whole turn."""
    return Turn(
        thought=_thought(text),
        query=_query_after(_QUERY, text),
        refined=_query_after(_REFINED, text),
        final=_final(text),
    )


def _thought(text: str) -> str | None:
    marker = _FIRST_MARKER.search(text)
    reasoning = text[: marker.start()] if marker else text
    return _LABEL.sub("", reasoning).strip() or None


def _last_end(marker: re.Pattern[str], text: str, start: int = 0) -> int | None:
    ends = [match.end() for match in marker.finditer(text, start)]
    return ends[-1] if ends else None


def _query_after(marker: re.Pattern[str], text: str) -> str | None:
    start = _last_end(marker, text)
    if start is None:
        return None
    query = text[start:]
    if structure := _AFTER_QUERY.search(query):
        query = query[: structure.start()]
    query = query.replace("[Dense]", "").replace("**", "")  # [Dense]: methods §2.2, line 7
    return " ".join(query.split()) or None


def _final(text: str) -> str | None:
    start = _last_end(_FINAL, text)
    if start is None:
        start = _last_end(_FINAL_PROSE, text)
    return None if start is None else _tidy(text[start:]) or None


def _tidy(answer: str) -> str:
    answer = answer.strip().removeprefix("**").lstrip()
    return answer.removesuffix("**").rstrip()


class Piece(NamedTuple):
    """Text to show while a turn is written; `void`: the answer so far was none."""

    kind: Literal["draft", "answer", "void"]
    text: str = ""


class TurnStream:
    """Tells a turn's reasoning from its answer while the turn is written.

    Reasoning up to the first marker is `draft`, text after `Final Answer:` is `answer`. A query
    outweighs an answer (methods §2.2, line 4), and of two answers the last one counts: both void
    what was shown. What may become a marker is held back, so that the pieces of kind `answer`
    since the last `void` are, joined, the `final` that `read_turn` reads. (Prose without a marker,
    "the final answer is …", is only read at the end.)
    """

    def __init__(self) -> None:
        self.text = ""
        self._drafted = 0
        self._answer = ""
        self._answer_from: int | None = None

    def feed(self, text: str) -> list[Piece]:
        """Take the next piece of the turn, return what can be shown of it."""
        self.text += text
        return [*self._draft(ended=False), *self._answers(ended=False)]

    def finish(self) -> list[Piece]:
        """The turn is complete: return what was held back."""
        return [*self._draft(ended=True), *self._answers(ended=True)]

    def _draft(self, ended: bool) -> list[Piece]:
        marker = _FIRST_MARKER.search(self.text, self._drafted)
        known = marker.start() if marker else len(_known(self.text, ended))
        fresh, self._drafted = self.text[self._drafted : known], max(self._drafted, known)
        return [Piece("draft", fresh)] if fresh else []

    def _answers(self, ended: bool) -> list[Piece]:
        """No marker begins before the end of the draft: the search need not either."""
        asks = _QUERY.search(self.text, self._drafted)
        start = None if asks else _last_end(_FINAL, self.text, self._drafted)
        pieces: list[Piece] = []
        if start != self._answer_from:
            pieces += [Piece("void")] if self._answer else []
            self._answer, self._answer_from = "", start
        if start is not None:
            answer = _tidy(_known(self.text[start:], ended))
            fresh, self._answer = answer[len(self._answer) :], answer
            pieces += [Piece("answer", fresh)] if fresh else []
        return pieces


def _known(text: str, ended: bool) -> str:
    """`text` without an end that may still become part of a marker or turn out to be padding."""
    if ended:
        return text
    tail = _PADDING.sub("", text[-_LONGEST_MARKER:]).lower()
    held = max(size for beginning, size in _BEGINNINGS if tail.endswith(beginning))
    end = len(text)
    while end and (held or text[end - 1] in _PADDING_CHARACTERS):
        end -= 1
        held -= text[end] not in _PADDING_CHARACTERS
    return text[:end]
