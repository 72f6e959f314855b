"""From the reader's scores of a window to the best answer in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from service.encoders.base import AnswerKind
from service.encoders.windows import Window
from service.text.sentences import sentences

KINDS: Final[tuple[AnswerKind, ...]] = ("span", "yes", "no", "none")
LONGEST_ANSWER: Final = 30  # pieces
TRIED: Final = 8  # beginnings and ends of a window that are combined
WORSE: Final = 6.0  # how much lower than the best part of a list the place of another may be
_YES_OR_NO = re.compile(
    r"(?:is|are|was|were|do|does|did|can|could|may|must|should|has|have|had|will|would)\b", re.I
)
_SEVERAL = re.compile(
    r"(?:in |at |of |for )?(?:who (?:are|were|was present|signed|attended)\b|what (?:are|were)\b"
    r"|(?:which|what) (?:\w+ )?(?!was|is|does|has)\w+s\b|list\b|name (?:the|all)\b)",
    re.I,
)
_BETWEEN = re.compile(r"\s*(?:,(?: (?:and|or|und|et))? |;\s| (?:and|or|und|et) )\s*")
_CELL = re.compile(r"([^;:.\n]+): ([^;\n]+?)(?=;|\.(?:\s|$)|\n|$)")  # of a row: `Header: value`

Form = Literal["one", "several", "yes_no"]


def form_of(question: str) -> Form:
    """Return what a question asks for by its first words."""
    asked = question.strip()
    if _YES_OR_NO.match(asked):
        return "yes_no"
    return "several" if _SEVERAL.match(asked) else "one"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer. `place` is the sum of the logits of its start and end, `margin` what it
    has more than "no answer" in its window, `none` the log-odds that the window has no answer, and
    `lead` what its place has more than the best one in another passage."""

    passage: int
    kind: AnswerKind
    spans: tuple[tuple[int, int], ...]
    place: float
    margin: float
    none: float
    lead: float = 0.0

    @property
    def features(self) -> tuple[float, float, float]:
        return self.margin, self.none, self.lead


@dataclass(frozen=True, slots=True)
class _Scored:
    """The logits of a window's text: of a start and of an end at each piece."""

    window: Window
    starts: Any
    ends: Any

    def best(self, left: int, right: int) -> tuple[float, tuple[int, int]] | None:
        """Return the best place between two characters, and its span in characters."""
        import numpy as np  # noqa: PLC0415

        spans = self.window.spans
        inside = [n for n, (start, end) in enumerate(spans) if left <= start and end <= right]
        if not inside:
            return None
        low, high = inside[0], inside[-1] + 1
        pairs = [
            (float(self.starts[a] + self.ends[b]), int(a), int(b))
            for a in low + np.argsort(-self.starts[low:high])[:TRIED]
            for b in low + np.argsort(-self.ends[low:high])[:TRIED]
            if a <= b < a + LONGEST_ANSWER
        ]
        if not pairs:
            return None
        place, a, b = max(pairs)
        return place, (spans[a][0], spans[b][1])


def best_of(
    passage: int, window: Window, places: Any, kinds: Any, text: str, form: Form
) -> Candidate | None:
    """Return the best answer in a window of `text`, or None if it has no text.

    `places` (pieces, 2) and `kinds` (4,) are the logits of the window. Yes and no are answers to a
    question that asks for them, several spans to one that asks for several.
    """
    import numpy as np  # noqa: PLC0415

    starts, ends = places[window.first : window.first + len(window.spans)].T
    scored = _Scored(window, starts, ends)
    if (found := scored.best(0, len(text))) is None:
        return None
    place, span = found
    kind: AnswerKind = "span"
    spans: tuple[tuple[int, int], ...] = (span,)
    if form == "yes_no" and max(kinds[1], kinds[2]) > kinds[0]:
        kind, spans = "yes" if kinds[1] >= kinds[2] else "no", ()
    elif form == "several":
        spans = tuple(_parts(scored, text, place, span))
    none = float(kinds[3] - np.logaddexp.reduce(kinds[:3]))
    return Candidate(passage, kind, spans, place, place - float(places[0].sum()), none)


def _parts(
    scored: _Scored, text: str, place: float, span: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield the parts of a list in their order: the cells with the header of `span`, or the members
    of the enumeration around it, whose places are nearly as good."""
    cells = [(match[1].strip(), match.span(2)) for match in _CELL.finditer(text)]
    own = [name for name, (left, right) in cells if left <= span[0] and span[1] <= right]
    pieces = [where for name, where in cells if own and name == own[0]] or _members(text, span)
    others = []
    for left, right in pieces:
        if left < span[1] and span[0] < right:
            continue
        found = scored.best(left, right)
        if found and found[0] >= place - WORSE:
            others.append(found[1])
    yield from sorted([span, *others])


def _members(text: str, span: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the members of the enumeration in the sentence of `span`."""
    start, end = next(
        (pair for pair in sentences(text) if pair[0] <= span[0] < pair[1]), (0, len(text))
    )
    marks = [match.span() for match in _BETWEEN.finditer(text, start, end)]
    edges = [start, *(edge for mark in marks for edge in mark), end]
    return list(zip(edges[::2], edges[1::2], strict=True))


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates of different passages, best first, with their leads."""
    ordered: Sequence[Candidate] = sorted(candidates, key=lambda each: -each.place)
    if len(ordered) < 2:
        return list(ordered)
    first, second = ordered[0].place, ordered[1].place
    leads = [first - second, *(each.place - first for each in ordered[1:])]
    return [replace(each, lead=lead) for each, lead in zip(ordered, leads, strict=True)]
