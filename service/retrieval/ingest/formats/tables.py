"""Tables as text that can be searched: a line for each row, `Header: value; Header: value.`

Each row names its headers, so that it can be understood without the rows above it, wherever a
document is cut.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

MOST_CELLS: Final = 500  # columns of a row, and how far a merged cell may reach
_DIGIT = re.compile(r"\d")
# a number, but no year, which may be the name of a column
_NUMBER = re.compile(r"(?!(?:19|20)\d\d$)[-+]?\d[\d.,  ']*%?")
_RULE = re.compile(r":?-++:?")  # a cell of the line below a header
_BAR = re.compile(r"(?<!\\)\|")
_PART = re.compile(r"\S+(?: \S+)*")  # up to a gap
CELL: Final = 30  # characters of a cell on average; columns of prose have longer lines
SMALLEST: Final = 3  # rows of a table without lines

Rows = Sequence[Sequence[str]]


def table_text(rows: Rows, *, headed: bool | None = None, caption: str = "") -> str:
    """Return a table as text, its caption first; empty if no cell has text.

    `headed` says whether the first row has the names of the columns. None means unknown: it has
    them if all its cells are different texts, and numbers stand below them only.
    """
    plain = [[" ".join(reduce(joined, cell.split("\n")).split()) for cell in row] for row in rows]
    plain = [row for row in plain if any(row)]
    if not plain:
        return ""
    if headed is None:
        headed = looks_headed(plain)
    header, body = (plain[0], plain[1:]) if headed and len(plain) > 1 else ([], plain)
    lines = [f"{caption.rstrip('.:')}."] if caption else []
    lines += [_line(header, row) for row in body]
    return "\n".join(lines)


def looks_headed(rows: Rows) -> bool:
    """Return whether all cells of the first row are different texts, and numbers only below."""
    first, *others = rows
    if not others or not all(first) or len(set(first)) < len(first) or len(first) < 2:
        return False
    below = "".join(cell for row in others for cell in row)
    return not _DIGIT.search("".join(first)) and (len(first) > 2 or bool(_DIGIT.search(below)))


def names_columns(row: Sequence[str]) -> bool:
    """Return whether a first row can have the names of columns: no cell is a number."""
    return any(row) and not any(_NUMBER.fullmatch(cell.strip()) for cell in row)


def one_header(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return a table whose header has two rows, as where a cell "2025" stands above "Q1" and "Q2",
    with a header of one."""
    top, below, *others = rows
    pairs = zip(top, below, strict=False)
    return [[a if a == b else f"{a} {b}".strip() for a, b in pairs], *map(list, others)]


def _line(header: Sequence[str], row: Sequence[str]) -> str:
    names = [*header, *[""] * (len(row) - len(header))]
    if not header and len(row) == 2 and all(row):  # a name and its value
        names, row = ["", row[0]], ["", row[1]]
    cells = zip(names, row, strict=False)
    found = [f"{name.rstrip(':')}: {cell}" if name else cell for name, cell in cells if cell]
    return "; ".join(value.replace(";", ",").rstrip(".") for value in found) + "."


def html_table(table: LexborNode) -> str:
    """Return a table of a page as text. What a merged cell contains stands in each of its rows and
    columns."""
    rows, headed, caption = list[list[str]](), False, ""
    below: dict[int, tuple[int, str]] = {}  # columns of merged cells: rows still to fill, and text
    for node in table.css("caption, tr"):
        if node.tag == "caption":
            caption = " ".join(node.text(separator=" ").split())
            continue
        row = list[str]()
        cells = [cell for cell in node.iter() if cell.tag in {"td", "th"}]
        for cell in cells:
            row += _merged(below, len(row))
            text = cell.text(separator=" ")
            wide, high = _span(cell, "colspan"), _span(cell, "rowspan")
            for _ in range(max(1, min(wide, (len(rows[0]) if rows else MOST_CELLS) - len(row)))):
                if high > 1:
                    below[len(row)] = high - 1, text
                row.append(text)
        row += _merged(below, len(row))
        headed |= not rows and len(cells) > 1 and all(cell.tag == "th" for cell in cells)
        rows.append(row)
    return table_text(rows, headed=headed or None, caption=caption)


def _merged(below: dict[int, tuple[int, str]], column: int) -> Iterator[str]:
    """Yield the cells from a column on that a cell above fills."""
    while (found := below.pop(column, None)) is not None:
        left, text = found
        if left > 1:
            below[column] = left - 1, text
        yield text
        column += 1


def _span(cell: LexborNode, name: str) -> int:
    given = cell.attributes.get(name) or ""
    return min(int(given), MOST_CELLS) if given.isascii() and given.isdigit() and int(given) else 1


def with_markdown_tables(text: str) -> str:
    """Return Markdown with its tables as lines of rows."""
    lines, made = text.split("\n"), list[str]()
    at = 0
    while at < len(lines):
        if at + 1 < len(lines) and "|" in lines[at] and "|" in lines[at + 1]:
            header, rule = _cells(lines[at]), _cells(lines[at + 1])
            if len(rule) == len(header) and all(_RULE.fullmatch(cell) for cell in rule):
                end = at + 2
                while end < len(lines) and "|" in lines[end]:
                    end += 1
                rows = [header, *(_cells(line) for line in lines[at + 2 : end])]
                made += table_text(rows, headed=True).split("\n")
                at = end
                continue
        made.append(lines[at])
        at += 1
    return "\n".join(made)


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.replace("\\|", "|").strip() for cell in _BAR.split(inner)]


class Part(NamedTuple):
    """A part of a line between gaps, and where it is, in characters."""

    text: str
    start: int
    end: int


def gapped_text(layout: str) -> tuple[str, bool]:
    """Return a text with the tables that gaps of two and more spaces divide into columns as rows,
    and whether it has any. Cells may be wrapped."""
    written, block, found = list[str](), list[list[Part]](), False
    for line in layout.split("\n"):
        parts = [Part(match[0], *match.span()) for match in _PART.finditer(line)]
        goes_on = len(parts) > 1 or (block and parts and parts[0].start > block[0][0].end)
        if not goes_on and parts:
            found |= _end(block, written)
            written.append(parts[0].text)
        elif parts:
            block.append(parts)
    found |= _end(block, written)
    return "\n".join(written), found


def _end(block: list[list[Part]], written: list[str]) -> bool:
    """Move lines to the text, as a table where they look like one, which is returned."""
    rows = _aligned(block)
    if rows and _is_table(rows):
        written.append(table_text(rows, headed=_headed(rows)))
        block.clear()
        return True
    found = False
    for _, lines in groupby(block, len):
        cells = [[part.text for part in line] for line in lines]
        is_table = _is_table(cells)
        found |= is_table
        if is_table:
            written.append(table_text(cells, headed=_headed(cells)))
        else:
            written += [" ".join(line) for line in cells]
    block.clear()
    return found


def _aligned(block: Sequence[Sequence[Part]]) -> list[list[str]] | None:
    """Return the rows of a table whose cells stand below each other, each of which may go on in
    lines below; None if they do not."""
    counts = Counter(map(len, block))
    size = max((count for count, lines in counts.items() if lines >= SMALLEST), default=0)
    full = [part for line in block if len(line) == size for part in line]
    # a centred header may stand beside cells
    tried = (_columns(full, apart) for apart in (0, 1, 2))
    columns = next((found for found in tried if len(found) == size > 1), None)
    if columns is None:
        return None
    lines = list[list[str]]()
    for line in block:
        cells = [""] * size
        for part in line:
            over = [at for at, (a, b) in enumerate(columns) if part.start < b and part.end > a]
            if len(over) != 1 or cells[over[0]]:
                return None
            cells[over[0]] = part.text
        lines.append(cells)
    return _unwrapped(lines)


def _columns(parts: Sequence[Part], apart: int) -> list[tuple[int, int]]:
    """Return where columns start and end, which are at least so many characters apart."""
    columns = list[tuple[int, int]]()
    for part in sorted(parts, key=lambda part: part.start):
        if columns and part.start < columns[-1][1] + apart:
            columns[-1] = columns[-1][0], max(columns[-1][1], part.end)
        else:
            columns.append((part.start, part.end))
    return columns


def _unwrapped(lines: Sequence[list[str]]) -> list[list[str]]:
    """Join the lines of each row. A line without a first cell goes on with the one before. One with
    it does so where most full lines are followed by one with gaps."""
    pairs = [(all(above), all(below) or not below[0]) for above, below in pairwise(lines)]
    wrapped = sum(full and not whole for full, whole in pairs)
    wraps = wrapped > 0.6 * sum(map(all, lines))
    rows = list[list[str]]()
    for line in lines:
        if rows and not all(line) and (wraps or not line[0]):
            rows[-1] = [joined(*cells) for cells in zip(rows[-1], line, strict=True)]
        else:
            rows.append(line)
    return rows


def joined(above: str, below: str) -> str:
    """Return the text of two lines of a cell. One that ends with a hyphen goes on without a
    space."""
    return f"{above}{'' if above.endswith('-') and below else ' '}{below}".strip()


def _is_table(rows: Sequence[Sequence[str]]) -> bool:
    size = sum(len(cell) for row in rows for cell in row) / max(1, sum(map(len, rows)))
    values = sum(any(_DIGIT.search(cell) for cell in row) for row in rows[1:])
    several = len(rows) >= SMALLEST and len(rows[0]) > 1
    return several and size < CELL and values >= 0.8 * (len(rows) - 1)


def _headed(rows: Sequence[Sequence[str]]) -> bool | None:
    return names_columns(rows[0]) if len(rows[0]) > 2 else None
