"""Rows of tables in text, a line each, as `Header: value; Header: value.`"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from service.text.words import content_words

# At least two cells, of which the first names its header.
ROW: Final = re.compile(r"[^:;\n]{1,80}: [^;\n]{1,1000}; [^:;\n]{1,80}: ")
_CELL: Final = re.compile(r"\s*(?:([^:;\n]{1,80}): )?([^;\n]*[^;\n.\s])")


class Cell(NamedTuple):
    """A cell of a row: its header, or "", and where its value is, in characters of the text."""

    header: str
    start: int
    end: int


class Row(NamedTuple):
    start: int
    end: int
    cells: tuple[Cell, ...]


class TabledText(NamedTuple):
    """A text with the rows of its tables. `others` are those that a question is not about."""

    text: str
    rows: Sequence[Row] = ()
    others: Sequence[Row] = ()


def rows_of(text: str) -> list[Row]:
    """Return the rows of the tables in a text."""
    found, start = [], 0
    for line in text.splitlines(keepends=True):
        end = start + len(line)
        if ROW.match(line):
            cells, at = [], start
            while match := _CELL.match(text, at, end):
                cells.append(Cell((match[1] or "").strip(), *match.span(2)))
                at = match.end() + 1
            found.append(Row(start, end, tuple(cells)))
        start = end
    return found


def read_tables(question: str, texts: Sequence[str]) -> list[TabledText]:
    """Return the texts with their tables. A question is not about a row if others have more of its
    words. Words in the first cell of a row, which names it, count twice, those of headers do
    not."""
    asked = _words(question)
    tables = [rows_of(text) for text in texts]
    scored = [
        [(row, _shared(asked, row, text)) for row in rows]
        for rows, text in zip(tables, texts, strict=True)
    ]
    most = max((score for rows in scored for _, score in rows), default=0)
    others = ([row for row, score in rows if score < most] for rows in scored)
    return list(map(TabledText, texts, tables, others))


def _shared(asked: set[str], row: Row, text: str) -> int:
    values = asked - _words(" ".join(cell.header for cell in row.cells))
    first, *others = (_words(text[cell.start : cell.end]) for cell in row.cells)
    return 2 * len(values & first) + len(values & set().union(*others) - first)


def _words(text: str) -> set[str]:
    return {word.removesuffix("s") for word in content_words(text)}
