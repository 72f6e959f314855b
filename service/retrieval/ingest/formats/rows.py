"""What a format makes of an input: rows, each a document or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from service.retrieval.ingest.documents import BadDocument, Document, parse_document
from service.retrieval.ingest.formats.streams import Input

LONGEST_ROW = 1_000_000  # bytes; longer lines are bad lines
TOO_LONG = f"longer than {LONGEST_ROW:,} bytes; split the document"


@dataclass(frozen=True, slots=True)
class Row:
    """A line or row (from 1; 0 is the whole file): a document, or what is wrong with it."""

    number: int
    found: Document | str


Reader = Callable[[Input], Iterator[Row]]
Maker = Callable[[object], Document]


def made(value: object, make: Maker = parse_document) -> Document | str:
    """The document of a decoded row, or what is wrong with it."""
    try:
        return make(value)
    except BadDocument as error:
        return str(error)


def plain(value: dict[str, Any]) -> dict[str, Any] | str:
    """A row as JSON has it (a date becomes its ISO text), or why there is none."""
    try:
        encoded = orjson.dumps(value)
    except (TypeError, ValueError) as error:
        return f"not plain JSON: {error}"
    if len(encoded) > LONGEST_ROW:
        return TOO_LONG
    decoded: dict[str, Any] = orjson.loads(encoded)
    return decoded
