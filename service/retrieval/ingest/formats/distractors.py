"""The passages in the questions of HotpotQA (distractor setting), 2WikiMultihopQA and MuSiQue,
pooled into one corpus: each distinct passage once.

HotpotQA (Yang et al., 2018, arXiv 1809.09600) and 2WikiMultihopQA (Ho et al., 2020, arXiv
2011.01060) are JSON lists whose `context` has pairs (title, sentences); HotpotQA's sentences
include their spaces. MuSiQue (Trivedi et al., 2022, arXiv 2108.00573) is JSONL with `paragraphs`.
The id of a passage is derived from its title and text, so `revelator evaluate` knows the gold
passages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import orjson

from service.retrieval.ingest.documents import Document
from service.retrieval.ingest.formats.base import (
    BOM,
    TOO_LONG,
    Input,
    SourceRow,
    made,
    not_utf8,
    read_lines,
)

LARGEST: Final = 1_000_000_000  # bytes of a JSON list, which is loaded as a whole

Passage = tuple[str, str]
Split = Callable[[Any], Iterable[Passage]]
Question = tuple[int, object]


def _context(row: Any, joint: str) -> Iterator[Passage]:
    """Return the pairs (title, sentences), also from the columns of the versions on data set
    hubs.
    """
    context = row["context"]
    if isinstance(context, dict):
        context = zip(context["title"], context["sentences"], strict=True)
    for title, sentences in context:
        yield title, joint.join(sentences)


def _paragraphs(row: Any) -> Iterator[Passage]:
    for paragraph in row["paragraphs"]:
        yield paragraph["title"], paragraph["paragraph_text"]


def _read(source: Input, split: Split, field: str) -> Iterator[SourceRow]:
    seen: set[str] = set()
    for number, row in _questions(source):
        if isinstance(row, SourceRow):
            yield row
            continue
        try:
            passages = list(split(row))
        except (KeyError, TypeError, ValueError):
            yield SourceRow(number, f"`{field}` is missing or not as in the published file")
            continue
        for title, text in passages:
            if not isinstance(text, str) or text.strip():  # some published passages are empty
                found = made({"title": title, "text": text})
                if not isinstance(found, Document) or found.id not in seen:
                    yield SourceRow(number, found)
                if isinstance(found, Document):
                    seen.add(found.id)


def _questions(source: Input) -> Iterator[Question]:
    """Yield the questions with their line or element, from 1, or a SourceRow with the problem."""
    if source.head.removeprefix(BOM).lstrip().startswith(b"["):
        yield from _listed(source)
        return
    for number, line in read_lines(source.stream):
        if line is None:
            yield number, SourceRow(number, f"the line is {TOO_LONG}")
        elif line.strip():
            yield number, _decoded(line, number)


def _listed(source: Input) -> Iterator[Question]:
    content = source.stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        yield 0, SourceRow(0, f"a JSON list must not exceed {LARGEST:,} bytes; convert it to JSONL")
        return
    rows = _decoded(content.removeprefix(BOM), 0)
    if isinstance(rows, list):
        yield from enumerate(rows, 1)
    else:
        yield 0, rows


def _decoded(content: bytes, number: int) -> object:
    try:
        return orjson.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        return SourceRow(number, not_utf8(error, " of the line" if number else ""))
    except orjson.JSONDecodeError as error:
        place = number or error.lineno
        return SourceRow(place, f"not JSON: {error.msg} at character {error.colno}")


read_hotpotqa = partial(_read, split=partial(_context, joint=""), field="context")
read_2wiki = partial(_read, split=partial(_context, joint=" "), field="context")
read_musique = partial(_read, split=_paragraphs, field="paragraphs")
