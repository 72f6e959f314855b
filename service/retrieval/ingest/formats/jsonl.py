"""JSON Lines: one object a line, `text` and where there are `id`, `title` and metadata."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from service.retrieval.ingest.documents import Document, parse_document
from service.retrieval.ingest.formats.lines import not_utf8, read_lines
from service.retrieval.ingest.formats.rows import TOO_LONG, Maker, Row, made
from service.retrieval.ingest.formats.streams import Input


def read_jsonl(source: Input) -> Iterator[Row]:
    return read_objects(source, parse_document)


def read_objects(source: Input, make: Maker) -> Iterator[Row]:
    """A row per line that is not blank."""
    for number, line in read_lines(source.stream):
        if line is None:
            yield Row(number, f"the line is {TOO_LONG}")
        elif line.strip():
            yield Row(number, _parse(line, make))


def _parse(line: bytes, make: Maker) -> Document | str:
    try:
        return made(orjson.loads(line.decode("utf-8")), make)
    except UnicodeDecodeError as error:
        return not_utf8(error)
    except orjson.JSONDecodeError as error:
        return f"not JSON: {error.msg} at character {error.colno}"
