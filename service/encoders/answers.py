"""From the extractor's scores of a window to the best answer in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from service.encoders.base import AnswerKind
from service.encoders.windows import Window
from service.text.sentences import sentences, trimmed
from service.text.tables import Cell, Row, TabledText
from service.text.words import MONTHS, normal_words

KINDS: Final[tuple[AnswerKind, ...]] = ("span", "yes", "no", "none")
LONGEST_ANSWER: Final = 30  # pieces
TRIED: Final = 8  # beginnings and ends of a window that are combined
WORSE: Final = 6.0  # how much lower than the best part of a list the place of another may be
UNSUITED: Final = 8.0  # how much lower a date is that is the answer to where
BARRED: Final = 8.0  # how much lower a place in a row of a table is that the question is not about
WHOLE_CELL: Final = 40  # characters of a cell that is an answer as a whole
_YES_OR_NO = re.compile(
    r"(?:is|are|was|were|do|does|did|can|could|may|must|should|has|have|had|will|would)\b", re.I
)
_SEVERAL = re.compile(
    r"(?:in |at |of |for )?(?:who (?:are|were|was present|signed|attended)\b|what (?:are|were)\b"
    r"|(?:which|what) (?:\w+ )?(?!was|is|does|has)\w+s\b|list\b|name (?:the|all)\b)",
    re.I,
)
_EXPLAINED = re.compile(
    r"(?:why|explain|describe|how (?:do|does|did|can|could|should|must|to))\b", re.IGNORECASE
)
_ASKS_PLACE = re.compile(
    r"(?:in |at |from )?(?:where|(?:which|what) (?:city|town|country|place|village))\b", re.I
)
_DATE = re.compile(rf"(?:[\d\W_]|\b(?:{'|'.join(MONTHS)})\b)+", re.I)
_NAME = re.compile(r"\b(?=\w*[A-ZÀ-Þ]|\w*\d)\w+(?:[-'’.]\w+)*")
_DIGIT = re.compile(r"\d")
_BETWEEN = re.compile(r"\s{0,9}(?:,(?: (?:and|or|und|et))? |;\s| (?:and|or|und|et) )\s*")

Form = Literal["one", "several", "yes_no", "sentence"]


def form_of(question: str) -> Form:
    """Return what a question asks for by its first words."""
    asked = question.strip()
    if _YES_OR_NO.match(asked) and " or " not in asked:
        return "yes_no"
    if _EXPLAINED.match(asked):
        return "sentence"
    return "several" if _SEVERAL.match(asked) else "one"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer. `place` is the sum of the logits of its start and end, `margin` what it
    has more than "no answer" in its window, `none` the log-odds that the window has no answer,
    `lead` what its place has more than the best one in another passage, and `missing` the number of
    names and numbers of the question that are not in its passage. For yes and no `spans` has the
    sentence that tells, `place` and `margin` are the log-odds against "no answer", and `yes` those
    of yes against no."""

    passage: int
    kind: AnswerKind
    spans: tuple[tuple[int, int], ...]
    place: float
    margin: float
    none: float
    lead: float = 0.0
    missing: int = 0
    yes: float = 0.0

    @property
    def features(self) -> tuple[float, ...]:
        return self.margin, self.none, self.lead, float(self.missing)


def _best_place(
    spans: Sequence[tuple[int, int]], starts: Any, ends: Any, left: int, right: int
) -> tuple[float, tuple[int, int]] | None:
    """Return the best place between two characters, and its span in characters, by the logits of a
    start and of an end at each piece of a window's text."""
    import numpy as np  # noqa: PLC0415

    inside = [n for n, (start, end) in enumerate(spans) if left <= start and end <= right]
    if not inside:
        return None
    low, high = inside[0], inside[-1] + 1
    pairs = [
        (float(starts[a] + ends[b]), int(a), int(b))
        for a in low + np.argsort(-starts[low:high])[:TRIED]
        for b in low + np.argsort(-ends[low:high])[:TRIED]
        if a <= b < a + LONGEST_ANSWER
    ]
    if not pairs:
        return None
    place, a, b = max(pairs)
    return place, (spans[a][0], spans[b][1])


def best_of(
    passage: int, window: Window, places: Any, kinds: Any, tabled: TabledText, question: str
) -> Candidate | None:
    """Return the best answer in a window of a passage, or None if it has no text.

    `places` (pieces, 2) and `kinds` (4,) are the logits of the window. Yes and no are answers to a
    question that asks for them, several spans to one that asks for several, a sentence to one that
    asks why or how.
    """
    import numpy as np  # noqa: PLC0415

    form, (text, rows, others) = form_of(question), tabled
    starts, ends = places[window.first : window.first + len(window.spans)].T.copy()
    barred = [row for row in others if _meets(row, window)]  # of a thousand, those that matter
    for n, (left, right) in enumerate(window.spans):
        if any(row.start <= left and right <= row.end for row in barred):
            starts[n] -= BARRED
    best_place = partial(_best_place, window.spans, starts, ends)
    if (found := best_place(0, len(text))) is None:
        return None
    place, span = found
    if form == "yes_no":
        yes = float(kinds[1] - kinds[2])
        odds = float(np.logaddexp(kinds[1], kinds[2]) - kinds[3])
        told = (_sentence(text, span),)
        return Candidate(passage, "yes" if yes >= 0 else "no", told, odds, odds, -odds, yes=yes)
    cells = (cell for row in rows if row.start <= span[0] < row.end for cell in row.cells)
    cell = next((cell for cell in cells if span[0] < cell.end), None)  # or in its header
    if cell:
        whole = cell.end - cell.start <= WHOLE_CELL or span[0] < cell.start or form == "several"
        span = (cell.start, cell.end) if whole else (span[0], min(span[1], cell.end))
    elif (end := text.find("\n\n", *span)) >= 0:  # an answer is in one paragraph
        span = (span[0], end)
    spans: tuple[tuple[int, int], ...] = (span,)
    if form == "several" and cell:
        spans = tuple(_column(rows, cell, question, text))
    elif form == "several":
        spans = tuple(_parts(best_place, _members(text, span), place, span))
    elif form == "sentence" and not cell:
        spans = (_sentence(text, span),)
    place -= UNSUITED * _is_no_place(question, text[slice(*span)])
    none = float(kinds[3] - np.logaddexp.reduce(kinds[:3]))
    return Candidate(passage, "span", spans, place, place - float(places[0].sum()), none)


def _is_no_place(question: str, answer: str) -> bool:
    """Whether the question asks for a place, and the answer is a date or a number."""
    return bool(_ASKS_PLACE.match(question.strip()) and _DATE.fullmatch(answer))


def _meets(row: Row, window: Window) -> bool:
    spans = window.spans
    return bool(spans) and row.start < spans[-1][1] and spans[0][0] < row.end


def _parts(
    best_place: Callable[[int, int], tuple[float, tuple[int, int]] | None],
    pieces: Sequence[tuple[int, int]],
    place: float,
    span: tuple[int, int],
) -> Iterator[tuple[int, int]]:
    """Yield the parts of a list in their order: `span`, and the others of the enumeration that have
    places nearly as good."""
    others = []
    for left, right in pieces:
        if left < span[1] and span[0] < right:
            continue
        found = best_place(left, right)
        if found and found[0] >= place - WORSE:
            others.append(found[1])
    yield from sorted([span, *others])


def missing_names(question: str, text: str) -> int:
    """Return how many names and numbers of a question are not in a text. What begins with a capital
    is a name, but for the first word; with a digit, that too."""
    first, _, rest = question.strip().partition(" ")
    words = [*_NAME.findall(rest), *(word for word in _NAME.findall(first) if _DIGIT.search(word))]
    folded = text.casefold()
    return sum(word.casefold().removesuffix("'s") not in folded for word in words)


def _column(
    rows: Sequence[Row], found: Cell, question: str, text: str
) -> Iterator[tuple[int, int]]:
    """Yield the cells of the column of `found`, in the rows that have what `question` names of its
    row."""

    def values(row: Row) -> dict[str, str]:
        return {cell.header: text[cell.start : cell.end].casefold() for cell in row.cells}

    (row,) = (row for row in rows if found in row.cells)
    asked = f" {' '.join(normal_words(question))} "
    named = {
        (header, value)
        for header, value in values(row).items()
        if header != found.header and f" {' '.join(normal_words(value)) or '-'} " in asked
    }
    for other in rows:
        held = values(other)
        if held.keys() == values(row).keys() and named <= held.items():
            yield from (cell[1:] for cell in other.cells if cell.header == found.header)


def _sentence(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Return where the sentence of `span` is, without the space around it."""
    for start, end in sentences(text):
        if start <= span[0] < end:
            begin, stop = trimmed(text, start, end)
            return begin, max(span[1], stop)
    return span


def _members(text: str, span: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the members of the enumeration in the sentence of `span`."""
    start, end = _sentence(text, span)
    marks = [match.span() for match in _BETWEEN.finditer(text, start, end)]
    edges = [start, *(edge for mark in marks for edge in mark), end]
    return list(zip(edges[::2], edges[1::2], strict=True))


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates of different passages, best first, with their leads."""
    ordered: Sequence[Candidate] = sorted(candidates, key=lambda candidate: -candidate.place)
    if len(ordered) < 2:
        return list(ordered)
    first, second = ordered[0].place, ordered[1].place
    leads = [first - second, *(candidate.place - first for candidate in ordered[1:])]
    return [replace(candidate, lead=lead) for candidate, lead in zip(ordered, leads, strict=True)]
