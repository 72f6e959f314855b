"""Plain text and Markdown: a file is one document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from service.retrieval.ingest.documents import LONGEST_TITLE
from service.retrieval.ingest.formats.base import (
    BOM,
    STANDARD_INPUT,
    Input,
    SourceRow,
    made,
    not_utf8,
    plain_suffix,
    reads_whole,
)

TEXT = frozenset({".txt", ".text"})
MARKDOWN = frozenset({".md", ".markdown"})
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)


@reads_whole()
def read_text(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield the document: its id is the name of the file, its title Markdown's first heading or the
    stem of the name."""
    try:
        text = content.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        yield SourceRow(0, not_utf8(error, ""))
        return
    if "\0" in text:
        yield SourceRow(0, f"not a text file: NUL at character {text.index(chr(0)) + 1}")
        return
    value: dict[str, Any] = {"title": _title(source, text), "text": text}
    if source.path != STANDARD_INPUT:
        value["id"] = source.label
    yield SourceRow(0, made(value))


def _title(source: Input, text: str) -> str:
    markdown = plain_suffix(source.path) in MARKDOWN
    heading = _HEADING.search(text) if markdown else None
    if heading:
        return heading[1].strip()[:LONGEST_TITLE]
    return "" if source.path == STANDARD_INPUT else source.path.stem
