"""Tables as text that can be searched: a line for each row, `Header: value; Header: value.`

Each row names its headers, so that it can be understood without the rows above it, wherever a
document is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

MOST_CELLS: Final = 500  # columns of a row, and how far a merged cell may reach
_DIGIT = re.compile(r"\d")
# a number, but no year, which may be the name of a column
_NUMBER = re.compile(r"(?!(?:19|20)\d\d$)[-+]?\d[\d.,  ']*%?")
_RULE = re.compile(r":?-++:?")  # a cell of the line below a header
_BAR = re.compile(r"(?<!\\)\|")
_GAP = re.compile(r"\s{2,}")
CELL: Final = 30  # characters of a cell on average; columns of prose have longer lines
SMALLEST: Final = 3  # rows of a table without lines

Rows = Sequence[Sequence[str]]


def table_text(rows: Rows, *, headed: bool | None = None, caption: str = "") -> str:
    """Return a table as text, its caption first; empty if no cell has text.

    `headed` says whether the first row has the names of the columns. None means unknown: it has
    them if all its cells are different texts, and numbers stand below them only.
    """
    plain = [[" ".join(cell.split()) for cell in row] for row in rows]
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
    return "; ".join(each.replace(";", ",").rstrip(".") for each in found) + "."


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
        cells = [each for each in node.iter() if each.tag in {"td", "th"}]
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


def gapped_text(layout: str) -> tuple[str, bool]:
    """Return a text with the tables that gaps of two and more spaces divide into columns as rows,
    and whether it has any."""
    written, rows, found = list[str](), list[list[str]](), False
    for line in layout.split("\n"):
        cells = _GAP.split(line.strip())
        if rows and len(cells) != len(rows[0]) and line.strip():
            found |= _end(rows, written)
        if len(cells) > 1:
            rows.append(cells)
        elif line.strip():
            written.append(cells[0])
    found |= _end(rows, written)
    return "\n".join(written), found


def _end(rows: list[list[str]], written: list[str]) -> bool:
    """Move rows to the text, as a table if they look like one, which is returned."""
    size = sum(len(cell) for row in rows for cell in row) / max(1, sum(map(len, rows)))
    values = sum(any(_DIGIT.search(cell) for cell in row) for row in rows[1:])
    is_table = len(rows) >= SMALLEST and size < CELL and values >= 0.8 * (len(rows) - 1)
    if is_table:
        headed = names_columns(rows[0]) if len(rows[0]) > 2 else None
        written.append(table_text(rows, headed=headed))
    else:
        written += [" ".join(row) for row in rows]
    rows.clear()
    return is_table
