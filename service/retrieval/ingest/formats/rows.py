"""Formats of one document in each row: JSON Lines, DPR's TSV, HippoRAG's lists, Parquet, and the
paragraphs of multi-hop questions."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import orjson

from service.core.extras import missing_packages
from service.retrieval.documents import BadDocument, Document, parse_document
from service.retrieval.ingest.formats.base import (
    BOM,
    LONGEST_ROW,
    STANDARD_INPUT,
    TOO_LONG,
    Input,
    SourceRow,
    made,
    not_utf8,
    plain,
    read_lines,
)

LARGEST_LIST = 1_000_000_000  # bytes of a JSON list, which is loaded as a whole

Decoded = tuple[Any, str]  # a value, and the problem if it is not JSON


def _values(source: Input) -> Iterator[tuple[int, Decoded]]:
    """Yield the number, from 1, and the value of each line that is not blank, or of each element if
    the content is a JSON list."""
    if _begins_list(source.head):
        content = source.stream.read(LARGEST_LIST + 1)
        if len(content) > LARGEST_LIST:
            what = f"a JSON list is loaded into memory and must not exceed {LARGEST_LIST:,} bytes"
            yield 0, (None, f"{what}; convert it to JSONL, one object per line")
            return
        try:
            values = orjson.loads(content.removeprefix(BOM))
        except orjson.JSONDecodeError as error:
            yield error.lineno, (None, f"not JSON: {error.msg} at character {error.colno}")
            return
        del content
        yield from enumerate(((value, "") for value in values), 1)
        return
    for number, line in read_lines(source.stream):
        if line is None:
            yield number, (None, f"the line is {TOO_LONG}")
        elif line.strip():
            yield number, _decoded(line)


def _begins_list(head: bytes) -> bool:
    """Return whether content is one JSON list, and not lines of which the first is a list."""
    head = head.removeprefix(BOM).lstrip()
    first, _, others = head.partition(b"\n")
    return head.startswith(b"[") and not (others.strip() and not _decoded(first)[1])


def _decoded(line: bytes) -> Decoded:
    try:
        return orjson.loads(line.decode("utf-8")), ""
    except UnicodeDecodeError as error:
        return None, not_utf8(error)
    except orjson.JSONDecodeError as error:
        return None, f"not JSON: {error.msg} at character {error.colno}"


def read_jsonl(source: Input) -> Iterator[SourceRow]:
    """Yield the documents of JSON lines, or of one JSON list, as HippoRAG's corpora are (Gutiérrez
    et al., 2024, arXiv 2405.14831), with `idx` for the id in some."""
    listed = _begins_list(source.head)
    for number, (value, problem) in _values(source):
        if listed and isinstance(value, dict):
            problem = TOO_LONG if len(orjson.dumps(value)) > LONGEST_ROW else ""  # noqa: PLW2901
            if (index := value.pop("idx", None)) is not None:
                value = {"id": index, **value}  # noqa: PLW2901
        yield SourceRow(number, problem or made(value, json_document))


def json_document(value: object) -> Document:
    """Parse a document, also in the forms of published corpora. Raises BadDocument.

    BEIR's have an `_id`, and `metadata`, whose fields become the document's own. Some have a title
    without a text; BEIR's own retrievers then search the title, and so does Revelator. FlashRAG's
    have `contents`, whose first line is the title, in quotation marks.
    """
    if not isinstance(value, dict) or ("text" in value and "_id" not in value):
        return parse_document(value)
    fields = dict(value)
    if "_id" in fields and "id" not in fields:
        fields |= {"id": fields.pop("_id"), **_fields_of(fields.pop("metadata", None), fields)}
        if fields.get("text") == "" and fields.get("title"):
            fields["text"] = fields["title"]
    if "text" not in fields and isinstance(contents := fields.get("contents"), str):
        del fields["contents"]
        title, line_end, text = contents.partition("\n")
        title, text = (title, text) if line_end else ("", title)
        fields = {"title": title.strip().strip('"'), **fields, "text": text.strip() or title}
    return parse_document(fields)


def _fields_of(metadata: object, fields: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(metadata, dict | None):
        raise BadDocument("metadata must be an object")
    if twice := sorted((metadata or {}).keys() & {*fields, "id", "title", "text"}):
        raise BadDocument(f"metadata must not contain {twice[0]}, which is a field of the document")
    return metadata or {}


# DPR's Wikipedia, `psgs_w100.tsv`: one passage of 100 words per line, with id, text and title.
#
# It was written by Python's `csv` (Karpukhin et al., 2020, arXiv 2004.04906): fields are
# separated by tabs; a field that contains a quote is quoted, and a quote in it is doubled.

COLUMNS = ("id", "text", "title")


def read_dpr(source: Input) -> Iterator[SourceRow]:
    lines = read_lines(source.stream)
    header = _header(next(lines, (1, b""))[1])
    if isinstance(header, str):
        yield SourceRow(1, header)
        return
    for number, line in lines:
        if line is None:
            yield SourceRow(number, f"the line is {TOO_LONG}")
        elif line.strip():
            yield SourceRow(number, _record(line, header))


def looks_like_dpr(head: bytes) -> bool:
    """Return whether the first line is the header."""
    return not isinstance(_header(head.removeprefix(BOM).split(b"\n", 1)[0]), str)


def _header(line: bytes | None) -> tuple[str, ...] | str:
    names = tuple((line or b"").decode("utf-8", "replace").strip().lower().split("\t"))
    if sorted(names) == sorted(COLUMNS):
        return names
    return "the first line must name the columns id, text and title, with tabs between them"


def _record(line: bytes, header: tuple[str, ...]) -> Document | str:
    try:
        fields = next(csv.reader([line.decode("utf-8")], delimiter="\t", strict=True))
    except UnicodeDecodeError as error:
        return not_utf8(error)
    except csv.Error as error:
        return f"not valid CSV: {error}"
    if len(fields) != len(header):
        return f"the line has {len(fields)} fields, but the header has {len(header)}"
    return made(dict(zip(header, fields, strict=True)))


# Parquet: one document per row, its columns like the fields of a JSON line (extra `parquet`).

MAGIC = b"PAR1"
ROWS = 256  # rows decoded at once
BUFFER = 1_000_000  # bytes of a column read at once


def read_parquet(source: Input) -> Iterator[SourceRow]:
    """Yield the rows, without lists of floats (precomputed vectors)."""
    if problem := missing_packages("Parquet", ("pyarrow",), "parquet"):
        yield SourceRow(0, problem)
        return
    if source.path == STANDARD_INPUT or source.compressed:
        yield SourceRow(
            0, "Parquet can be read only from a plain file, not from a stream; save it to a file"
        )
        return
    import pyarrow  # noqa: PLC0415

    row = 0
    try:
        for value in _table_rows(source):
            row += 1
            yield SourceRow(row, value)
    except BadDocument as refused:
        yield SourceRow(0, str(refused))
    except (pyarrow.ArrowException, OSError) as error:
        what = f"after row {row:,}: " if row else ""
        yield SourceRow(0, f"not a complete Parquet file: {what}{error}; download it again")
    except (OverflowError, ValueError) as error:
        yield SourceRow(0, f"a value after row {row:,} has no form in JSON: {error}")


def _table_rows(source: Input) -> Iterator[Document | str]:
    from pyarrow import parquet  # noqa: PLC0415

    with parquet.ParquetFile(source.path, buffer_size=BUFFER, pre_buffer=False) as file:
        columns = _columns(file.schema_arrow)
        done = 0
        for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
            done += batch.num_rows
            source.reached(done / file.metadata.num_rows)
            for value in _in_microseconds(batch).to_pylist():
                present = plain({key: item for key, item in value.items() if item is not None})
                yield present if isinstance(present, str) else made(present, json_document)


def _in_microseconds(batch: Any) -> Any:
    """Times in nanoseconds, as pandas writes them, become what Python's datetime can hold."""
    import pyarrow  # noqa: PLC0415

    arrays = [
        column.cast(pyarrow.timestamp("us", column.type.tz), safe=False)
        if pyarrow.types.is_timestamp(column.type) and column.type.unit == "ns"
        else column
        for column in batch.columns
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _columns(schema: Any) -> list[str]:
    from pyarrow import types  # noqa: PLC0415

    if "text" not in schema.names:
        raise BadDocument(f"there is no column `text`; the columns are: {', '.join(schema.names)}")

    def vector(kind: Any) -> bool:
        listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        return bool(listed and types.is_floating(kind.value_type))

    return [field.name for field in schema if not vector(field.type)]


# The passages in the questions of HotpotQA (distractor setting), 2WikiMultihopQA and MuSiQue,
# pooled into one corpus: each distinct passage once.
#
# HotpotQA (Yang et al., 2018, arXiv 1809.09600) and 2WikiMultihopQA (Ho et al., 2020, arXiv
# 2011.01060) are JSON lists whose `context` has pairs (title, sentences); HotpotQA's sentences
# include their spaces. MuSiQue (Trivedi et al., 2022, arXiv 2108.00573) is JSONL with `paragraphs`.
# The id of a passage is derived from its title and text, so `revelator evaluate` knows the gold
# passages.

Passage = tuple[str, str]
Split = Callable[[Any], Iterable[Passage]]


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
    return ((paragraph["title"], paragraph["paragraph_text"]) for paragraph in row["paragraphs"])


def _read(source: Input, split: Split, field: str) -> Iterator[SourceRow]:
    seen: set[str] = set()
    for number, (row, problem) in _values(source):
        if problem:
            yield SourceRow(number, problem)
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


read_hotpotqa = partial(_read, split=partial(_context, joint=""), field="context")
read_2wiki = partial(_read, split=partial(_context, joint=" "), field="context")
read_musique = partial(_read, split=_paragraphs, field="paragraphs")
