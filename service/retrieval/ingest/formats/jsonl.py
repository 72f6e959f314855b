"""JSON Lines: one object per line, with `text` and optionally `id`, `title` and metadata. BEIR's
`corpus.jsonl` has `_id`, `title`, `text` and, in some sets, an object `metadata`; FlashRAG's has
`id` and `contents`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from service.retrieval.ingest.documents import BadDocument, Document, parse_document
from service.retrieval.ingest.formats.base import (
    TOO_LONG,
    Input,
    Maker,
    SourceRow,
    made,
    not_utf8,
    read_lines,
)


def read_jsonl(source: Input) -> Iterator[SourceRow]:
    return read_objects(source, json_document)


def json_document(value: object) -> Document:
    """Parse a document. FlashRAG's have `contents`, whose first line is the title, in quotation
    marks. Raises BadDocument."""
    if isinstance(value, dict) and "text" not in value and isinstance(value.get("contents"), str):
        title, line_end, text = value["contents"].partition("\n")
        title, text = (title, text) if line_end else ("", title)
        own = {key: item for key, item in value.items() if key != "contents"}
        value = {"title": title.strip().strip('"'), **own, "text": text.strip() or title}
    return parse_document(value)


def read_objects(source: Input, make: Maker) -> Iterator[SourceRow]:
    """Yield a row for each line that is not blank."""
    for number, line in read_lines(source.stream):
        if line is None:
            yield SourceRow(number, f"the line is {TOO_LONG}")
        elif line.strip():
            yield SourceRow(number, _parse(line, make))


def _parse(line: bytes, make: Maker) -> Document | str:
    try:
        return made(orjson.loads(line.decode("utf-8")), make)
    except UnicodeDecodeError as error:
        return not_utf8(error)
    except orjson.JSONDecodeError as error:
        return f"not JSON: {error.msg} at character {error.colno}"


OWN = frozenset({"id", "title", "text"})
_ID = re.compile(rb'(?<!\\)"_id"\s*:')
_PLAIN_ID = re.compile(rb'(?<!\\)"id"\s*:')


def read_beir(source: Input) -> Iterator[SourceRow]:
    return read_objects(source, beir_document)


def looks_like_beir(head: bytes) -> bool:
    """Return whether the first line has `_id` and no `id`."""
    line = head.split(b"\n", 1)[0]
    return bool(_ID.search(line)) and not _PLAIN_ID.search(line)


def beir_document(value: object) -> Document:
    """Parse a document; the fields of `metadata` become its own. Raises BadDocument.

    Some sets have titles without text; BEIR's own retrievers then search the title, and so does
    Revelator.
    """
    if not isinstance(value, dict):
        return parse_document(value)
    if "_id" not in value:
        raise BadDocument("_id is missing; BEIR's corpus.jsonl has the fields _id, title and text")
    return parse_document(_flattened(value))


def _flattened(value: dict[str, Any]) -> dict[str, Any]:
    own = {key: item for key, item in value.items() if key not in {"_id", "metadata"}}
    metadata = value.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise BadDocument("metadata must be an object")
    if twice := sorted(metadata.keys() & (own.keys() | OWN)):
        raise BadDocument(f"metadata must not contain {twice[0]}, which is a field of the document")
    if own.get("text") == "" and own.get("title"):
        own["text"] = own["title"]
    return {"id": value["_id"], **own, **metadata}
