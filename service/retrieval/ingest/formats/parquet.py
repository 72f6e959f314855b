"""Parquet: one document per row, its columns like the fields of a JSON line (extra `parquet`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from service.core.extras import missing_packages
from service.retrieval.ingest.documents import Document
from service.retrieval.ingest.formats.base import STANDARD_INPUT, Input, SourceRow, made, plain
from service.retrieval.ingest.formats.jsonl import beir_document

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
        for value in _rows(source):
            row += 1
            yield SourceRow(row, value)
    except _Refused as refused:
        yield SourceRow(0, str(refused))
    except (pyarrow.ArrowException, OSError) as error:
        what = f"after row {row:,}: " if row else ""
        yield SourceRow(0, f"not a complete Parquet file: {what}{error}; download it again")
    except (OverflowError, ValueError) as error:
        yield SourceRow(0, f"a value after row {row:,} has no form in JSON: {error}")


class _Refused(Exception):
    """The columns of the file are not those of documents."""


def _rows(source: Input) -> Iterator[Document | str]:
    from pyarrow import parquet  # noqa: PLC0415

    with parquet.ParquetFile(source.path, buffer_size=BUFFER, pre_buffer=False) as file:
        columns = _columns(file.schema_arrow)
        beir, done = "_id" in columns and "id" not in columns, 0
        for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
            done += batch.num_rows
            source.reached(done / file.metadata.num_rows)
            for value in _in_microseconds(batch).to_pylist():
                yield _document(value, beir=beir)


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
        raise _Refused(f"there is no column `text`; the columns are: {', '.join(schema.names)}")

    def vector(kind: Any) -> bool:
        listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        return bool(listed and types.is_floating(kind.value_type))

    return [field.name for field in schema if not vector(field.type)]


def _document(value: dict[str, Any], *, beir: bool) -> Document | str:
    present = plain({key: item for key, item in value.items() if item is not None})
    if isinstance(present, str):
        return present
    return made(present, beir_document) if beir else made(present)
