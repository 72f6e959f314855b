"""Tables and slides: CSV and TSV, XLSX and PPTX (extra `documents`).

A document has up to 100 rows of a table, which name their headers (`tables.py`), or one slide. Its
id says where it is: `prices.csv#row=2-101` (as in RFC 7111), `prices.xlsx#sheet=1&row=2-101`,
`talk.pptx#slide=3`.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from service.retrieval.ingest.formats.base import (
    ALL_READ,
    HEAD,
    Input,
    SourceRow,
    plain_suffix,
    reads_whole,
)
from service.retrieval.ingest.formats.pages import decoded, part_row
from service.retrieval.ingest.formats.tables import (
    MOST_CELLS,
    looks_headed,
    names_columns,
    one_header,
    table_text,
)

if TYPE_CHECKING:
    from openpyxl.cell.read_only import ReadOnlyCell

ROWS: Final = 100  # rows of a table in one document
_DELIMITERS: Final = ",;\t|"

Row = tuple[int, Sequence[str]]  # its number, from 1, and its cells


@reads_whole()
def read_csv(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield the rows in documents. The delimiter is the one with which most lines have equally many
    fields; the first row has the names of the columns, unless one of them is a number."""
    text = decoded(content)
    if "\0" in text:
        yield SourceRow(0, f"not a text file: NUL at character {text.index(chr(0)) + 1}")
        return
    tab = plain_suffix(source.path) == ".tsv"
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter="\t" if tab else _delimiter(text), strict=True
    )
    rows, problem = list[Row](), ""
    try:
        for cells in reader:
            if any(map(str.strip, cells)):
                rows.append((reader.line_num, cells[:MOST_CELLS]))
    except csv.Error as error:
        problem = f"not valid CSV from here on: {error}; correct the quotation marks"
    yield from _documents(
        source, rows, (source.stem,), {}, headed=bool(rows) and names_columns(rows[0][1])
    )
    yield SourceRow(reader.line_num, problem) if problem else ALL_READ


def _delimiter(text: str) -> str:
    def fit(delimiter: str) -> tuple[int, int]:
        lines = io.StringIO(text[:HEAD], newline="")
        try:
            widths = Counter(len(row) for row in islice(csv.reader(lines, delimiter=delimiter), 50))
        except csv.Error:
            return 0, 0
        width, count = max(widths.items(), key=lambda pair: pair[1], default=(0, 0))
        return (count, width) if width > 1 else (0, 0)

    return max(_DELIMITERS, key=fit)


def _documents(
    source: Input, rows: Sequence[Row], path: Sequence[str], fields: Mapping[str, Any], *,
    headed: bool, place: str = "",
) -> Iterator[SourceRow]:  # fmt: skip
    """Yield a table in documents, each with the header."""
    header = [rows[0][1]] if headed and len(rows) > 1 else []
    body = rows[len(header) :]
    for start in range(0, len(body), ROWS):
        part = body[start : start + ROWS]
        first, last = part[0][0], part[-1][0]
        text = table_text([*header, *(cells for _, cells in part)], headed=bool(header))
        yield part_row(source, first, path, text, f"{place}row={first}-{last}", fields)


# XLSX: the values as they were stored last; macros and formulas are not run.

# The parser gives these only if it holds the whole sheet, which needs fifty times its size.
_MERGED: Final = re.compile(rb'<(?:\w+:)?mergeCell\s[^>]*?ref="([A-Z0-9:]+)"')
_NO_VALUE: Final = re.compile(rb"(?:</f>|<f/>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>")
_CURRENCY: Final = re.compile(r'\[\$([^\]\-]+)|"([^"]+)"|([€$£¥])')
_DECIMALS: Final = re.compile(r"0\.(0+)")


@reads_whole("XLSX", "openpyxl", part="xl/workbook.xml")
def read_xlsx(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield the tables of each sheet in documents. Blank rows separate tables, and rows of one text
    above a table are its caption."""
    import openpyxl  # noqa: PLC0415

    found, empty = 0, 0
    book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        for number, sheet in enumerate(book.worksheets, 1):
            sheet.reset_dimensions()  # what a file says of its size may be wrong
            part = package.read(sheet._worksheet_path)
            empty += len(_NO_VALUE.findall(part))
            rows = {
                at: _without_blank_end([_shown(cell) for cell in cells])
                for at, cells in enumerate(sheet.iter_rows(max_col=MOST_CELLS), 1)
                if any(cell.value is not None for cell in cells)
            }
            wide = _fill_merged(rows, [merged.decode() for merged in _MERGED.findall(part)])
            for row in _sheet(source, rows, wide, number, (source.stem, sheet.title)):
                found += 1
                yield row
    if found:
        yield ALL_READ
    if empty:
        yield SourceRow(
            0, f"formulas without a stored value ({empty:,}) were left out; open the file in Excel "
            "or LibreOffice and save it"
        )  # fmt: skip
    elif not found:
        yield SourceRow(0, "the sheets are empty")


def _sheet(
    source: Input, rows: Mapping[int, list[str]], wide: set[int], number: int, path: tuple[str, str]
) -> Iterator[SourceRow]:
    tables = list[list[Row]]()
    for at, cells in rows.items():
        if not tables or tables[-1][-1][0] != at - 1:
            tables.append([])
        tables[-1].append((at, cells))
    for table in tables:
        top = next((n for n, (_, cells) in enumerate(table) if len({*filter(None, cells)}) > 1), 0)
        caption = " – ".join(next(filter(None, cells)) for _, cells in table[:top])
        body = table[top:]
        if body[0][0] in wide and len(body) > 2:  # a header of two rows
            header, *_ = one_header([cells for _, cells in body[:2]])
            body = [(body[1][0], header), *body[2:]]
        texts = [cells for _, cells in body]
        narrow = max(map(len, texts)) <= 2  # may be names and values
        headed = looks_headed(texts) if narrow else names_columns(texts[0])
        yield from _documents(
            source, body, (*path, caption), {"sheet": path[1]}, headed=headed,
            place=f"sheet={number}&",
        )  # fmt: skip


def _without_blank_end(cells: list[str]) -> list[str]:
    while cells and not cells[-1]:
        cells.pop()
    return cells


def _fill_merged(rows: dict[int, list[str]], ranges: Sequence[str]) -> set[int]:
    """Write what a merged cell contains in each of its rows and columns. Return the rows of cells
    merged over columns."""
    from openpyxl.utils import range_boundaries  # noqa: PLC0415

    wide = set[int]()
    for merged in ranges:
        left, top, right, bottom = (at or 1 for at in range_boundaries(merged))
        text = rows[top][left - 1] if top in rows and len(rows[top]) >= left else ""
        right = min(right, MOST_CELLS)
        if text and right > left:
            wide.add(top)
        for at in range(top, min(bottom, top + MOST_CELLS) + 1) if text else ():
            if cells := rows.get(at):
                cells += [""] * (right - len(cells))
                cells[left - 1 : right] = [text] * (right - left + 1)
    return wide


def _shown(cell: ReadOnlyCell) -> str:
    """Return a value about as the program shows it: with its unit, decimals or percent sign."""
    value = cell.value
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    if isinstance(value, date | time):
        return value.isoformat().replace("T", " ")
    if value is None or cell.data_type == "e":  # an error, such as #REF!
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return " ".join(str(value).split())
    form = (cell.number_format or "").partition(";")[0]
    decimals = _DECIMALS.search(form)
    places = len(decimals[1]) if decimals else 0
    if "%" in form:
        return f"{value:.{places}%}"
    unit = _CURRENCY.search(form)
    text = f"{value:.{places}f}" if places else f"{value:.12g}" if value % 1 else f"{value:.0f}"
    return f"{text} {next(filter(None, unit.groups())).strip()}" if unit else text


# PPTX: each slide with text is a document.


@reads_whole("PPTX", "pptx", part="ppt/presentation.xml")
def read_pptx(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield a document for each slide: its texts from top to bottom, tables, and notes."""
    import pptx  # noqa: PLC0415

    found = 0
    for number, slide in enumerate(pptx.Presentation(io.BytesIO(content)).slides, 1):
        named = slide.shapes.title
        heading = " ".join(named.text_frame.text.split()) if named else ""
        blocks = [text for shape in slide.shapes if shape != named for text in _texts(shape)]
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame):
            blocks.append(notes.text)
        if text := "\n\n".join(block for block in blocks if block.strip()) or heading:
            found += 1
            place, path = f"slide={number}", (source.stem, heading)
            yield part_row(source, number, path, text, place, {"slide": number})
    yield ALL_READ if found else SourceRow(0, "the slides have no text")


def _texts(shape: Any) -> Iterator[str]:
    for part in getattr(shape, "shapes", ()):  # of a group
        yield from _texts(part)
    if shape.has_text_frame:
        yield shape.text_frame.text
    elif getattr(shape, "has_table", False):
        table = shape.table
        rows = [[cell.text for cell in row.cells] for row in table.rows]
        for top, row in enumerate(table.rows):
            for left, cell in enumerate(row.cells):
                for at in range(top, top + cell.span_height) if cell.is_merge_origin else ():
                    rows[at][left : left + cell.span_width] = [cell.text] * cell.span_width
        yield table_text(rows, headed=table.first_row or None)
