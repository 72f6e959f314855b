"""DPR's Wikipedia, `psgs_w100.tsv`: one passage of 100 words per row, with id, text and title.

It was written by Python's `csv` (Karpukhin et al., 2020, arXiv 2004.04906): fields are separated by
tabs; a field that contains a quote or a line end is quoted, and a quote in it is doubled.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator

from service.retrieval.ingest.documents import Document
from service.retrieval.ingest.formats.base import (
    BOM,
    LONGEST_ROW,
    TOO_LONG,
    Input,
    SourceRow,
    made,
    not_utf8,
    read_lines,
)

COLUMNS = ("id", "text", "title")
MOST_LINES = 100  # lines of one row; a quote that is never closed would take all following ones
_OPEN = "unexpected end of data"  # the message of `csv` for an unclosed quote

Numbered = tuple[int, bytes | None]


def read_dpr(source: Input) -> Iterator[SourceRow]:
    lines = _Lines(read_lines(source.stream))
    header = _header(next(lines, (1, b""))[1])
    if isinstance(header, str):
        yield SourceRow(1, header)
        return
    for number, line in lines:
        if line is None:
            yield SourceRow(number, f"the line is {TOO_LONG}")
        elif line.strip():
            yield SourceRow(number, _record(line, lines, header))


def looks_like_dpr(head: bytes) -> bool:
    """Return whether the first line is the header."""
    return not isinstance(_header(head.removeprefix(BOM).split(b"\n", 1)[0]), str)


class _Lines:
    """Lines that can be put back."""

    def __init__(self, lines: Iterator[Numbered]) -> None:
        self._lines = lines
        self._back: list[Numbered] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> Numbered:
        return self._back.pop() if self._back else next(self._lines)

    def put_back(self, lines: list[Numbered]) -> None:
        self._back.extend(reversed(lines))


def _header(line: bytes | None) -> tuple[str, ...] | str:
    names = tuple((line or b"").decode("utf-8", "replace").strip().lower().split("\t"))
    if sorted(names) == sorted(COLUMNS):
        return names
    return "the first line must name the columns id, text and title, with tabs between them"


def _record(line: bytes, lines: _Lines, header: tuple[str, ...]) -> Document | str:
    """Return the record that begins with `line`; takes its further lines from `lines`."""
    taken: list[Numbered] = []
    fields = _split(line)
    while fields is None:
        number, more = next(lines, (0, None))
        if number:
            taken.append((number, more))
        line = line + b"\n" + (more or b"")
        if more is None or len(taken) == MOST_LINES or len(line) > LONGEST_ROW:
            lines.put_back(taken)
            return f"a quote opens here and is not closed within {MOST_LINES} lines"
        if b'"' in more:
            fields = _split(line)
    if isinstance(fields, str):
        lines.put_back(taken)
        return fields
    if len(fields) != len(header):
        return f"the line has {len(fields)} fields, but the header has {len(header)}"
    return made(dict(zip(header, fields, strict=True)))


def _split(line: bytes) -> list[str] | str | None:
    """Return the fields; the problem; or None if a quote is still open."""
    try:
        return next(csv.reader([line.decode("utf-8")], delimiter="\t", strict=True))
    except UnicodeDecodeError as error:
        return not_utf8(error)
    except csv.Error as error:
        return None if str(error) == _OPEN else f"not valid CSV: {error}"
