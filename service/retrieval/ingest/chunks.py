"""Cuts documents into passages.

A document of at most 200 MiniLM word pieces is one passage under its own id. A longer one becomes
`id#1`, `id#2`, … It is cut between sentences, and each passage begins with the last sentence of the
previous one if both fit. A sentence that is too long by itself is halved, between words if
possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from service.core.domain import Passage
from service.retrieval.embedding.base import BATCH
from service.retrieval.ingest.documents import Document, PassageRecord
from service.text import sentences
from service.text.wordpiece import Pieces, count_pieces

MOST_PIECES = 200
MOST_READY = 256  # vectors computed beforehand that are upserted at once
# A word over 100 characters is a single piece, so text without space needs a second bound.
MOST_CHARACTERS = 4_000

_SPACE = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class Chunked:
    """A document's passages, and their vectors if they have been computed."""

    records: Sequence[PassageRecord]
    vectors: Sequence[Sequence[float]] = ()

    def by_id(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Return the vectors by passage id."""
        for record, vector in zip(self.records, self.vectors, strict=False):
            yield record.passage.passage_id, vector


def passages_of(
    document: Document, spans: Sequence[tuple[int, int]] | None = None
) -> list[PassageRecord]:
    """Return the passages of a document in order. Every non-space character of its text is in one
    of them.

    `spans` is the result of `cut` for its text, if that has been computed.
    """
    spans = spans or cut(document.text)
    whole = len(spans) == 1
    return [
        PassageRecord(
            passage=Passage(
                passage_id=document.id if whole else f"{document.id}#{part + 1}",
                title=document.title,
                text=document.text if whole else document.text[start:end].strip(),
                metadata=document.metadata,
            ),
            document_id=document.id,
            content_hash=document.content_hash,
            part=part,
            parts=len(spans),
        )
        for part, (start, end) in enumerate(spans)
    ]


def cut(text: str) -> list[tuple[int, int]]:
    """Return spans (start, end) in code points that cover `text`, each within both limits."""
    if _is_short(text):
        return [(0, len(text))]
    units, fit = _units(text)
    spans, first = [], 0
    while True:
        last = first
        while last + 1 < len(units) and fit(first, last + 1):
            last += 1
        spans.append((units[first][0], units[last][1]))
        if last + 1 == len(units):
            return spans
        first = last if last > first and fit(last, last + 1) else last + 1


def _is_short(text: str) -> bool:
    """Whether the text is one passage. ASCII text has no more pieces than characters."""
    if len(text) <= MOST_PIECES and text.isascii():
        return True
    return len(text) <= MOST_CHARACTERS and count_pieces(text) <= MOST_PIECES


def _units(text: str) -> tuple[list[tuple[int, int]], Callable[[int, int], bool]]:
    """Return the spans of the units that passages consist of, and a function that says whether
    units from a first to a last one fit into one passage. Sentences meet at a space or a mark, so
    that their pieces add up; the halves of a long one may meet inside a word, and are counted
    together.
    """
    units = sentences(text)
    counts = [count_pieces(text[start:end]) for start, end in units]
    longest = max(end - start for start, end in units)
    if max(counts) <= MOST_PIECES and longest <= MOST_CHARACTERS:
        before = [0, *accumulate(counts)]  # pieces before each unit, and of all units
        return (
            units,
            lambda first, last: (
                before[last + 1] - before[first] <= MOST_PIECES
                and units[last][1] - units[first][0] <= MOST_CHARACTERS
            ),
        )
    pieces = Pieces(text)
    halves = [part for start, end in units for part in _halved(text, pieces, start, end)]
    return halves, lambda first, last: _fits(pieces, halves[first][0], halves[last][1])


def _fits(pieces: Pieces, start: int, end: int) -> bool:
    return end - start <= MOST_CHARACTERS and pieces.count(start, end) <= MOST_PIECES


def _halved(text: str, pieces: Pieces, start: int, end: int) -> list[tuple[int, int]]:
    pending, done = [(start, end)], []
    while pending:
        start, end = pending.pop()
        if _fits(pieces, start, end):
            done.append((start, end))
            continue
        middle = _cut_point(text, start, end)
        pending += [(middle, end), (start, middle)]
    return done


def _cut_point(text: str, start: int, end: int) -> int:
    """Return the place after the first space of the third quarter, else of the second, else the
    middle.
    """
    middle, quarter = (start + end) // 2, (end - start) // 4
    space = _SPACE.search(text, middle, middle + quarter) or _SPACE.search(
        text, start + quarter, middle
    )
    return space.end() if space else middle


def batches_of(
    records: Sequence[PassageRecord], made: Mapping[str, Sequence[float]]
) -> Iterator[list[PassageRecord]]:
    """Yield first the passages whose vectors are in `made`, many at a time, then the others, 32 of
    similar length at a time, so that a forward pass has little padding."""
    ready = [record for record in records if record.passage.passage_id in made]
    for start in range(0, len(ready), MOST_READY):
        yield ready[start : start + MOST_READY]
    others = [record for record in records if record.passage.passage_id not in made]
    others.sort(key=lambda record: len(record.passage.text))
    for start in range(0, len(others), BATCH):
        yield others[start : start + BATCH]
