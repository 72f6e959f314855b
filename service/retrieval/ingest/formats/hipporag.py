"""HippoRAG's corpora: one JSON list of `{title, text}`, with `idx` in some (Gutiérrez et al., 2024,
arXiv 2405.14831)."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from service.retrieval.ingest.documents import Document
from service.retrieval.ingest.formats.base import BOM, Input, SourceRow, made, plain

LARGEST = 200_000_000  # bytes of JSON, which is loaded as a whole


def read_hipporag(source: Input) -> Iterator[SourceRow]:
    """Yield the elements of the list, counted from 1."""
    content = source.stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        what = f"a JSON list is loaded into memory and must not exceed {LARGEST:,} bytes"
        yield SourceRow(0, f"{what}; convert it to JSONL, one object per line")
        return
    try:
        values = orjson.loads(content.removeprefix(BOM))
    except orjson.JSONDecodeError as error:
        yield SourceRow(error.lineno, f"not JSON: {error.msg} at character {error.colno}")
        return
    if not isinstance(values, list):
        yield SourceRow(
            0, "a JSON list of {title, text} objects is expected; JSONL has one object per line"
        )
        return
    del content
    for number, value in enumerate(values, 1):
        yield SourceRow(number, _document(value))


def _document(value: object) -> Document | str:
    if not isinstance(value, dict):
        return made(value)
    checked = plain(value)
    if isinstance(checked, str):
        return checked
    index = checked.pop("idx", None)
    if "id" not in checked and index is not None:
        checked["id"] = index
    return made(checked)
