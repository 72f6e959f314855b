"""Tables become lines of rows that name their headers, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.retrieval.documents import Document, cut, passages_of
from service.retrieval.ingest.formats.tables import (
    gapped_text,
    table_text,
    with_markdown_tables,
)
from service.retrieval.ingest.sources import read_files
from tests.conftest import need
from tests.support.office import pdf

PRICES = [["Model", "Price"], ["HP-20", "1,240 EUR"], ["HP-35", ""], ["", ""]]


@pytest.mark.parametrize(
    ("rows", "headed", "expected"),
    [
        (PRICES, True, "Model: HP-20; Price: 1,240 EUR.\nModel: HP-35."),
        (PRICES, None, "Model: HP-20; Price: 1,240 EUR.\nModel: HP-35."),
        ([["Address", "Main Street"], ["Desk", "Ann"]], None, "Address: Main Street.\nDesk: Ann."),
        (
            [["Who", "What", "When"], ["Ann", "x; y", "now."]],
            None,
            "Who: Ann; What: x, y; When: now.",
        ),
        ([["a", "a", "b"], ["1", "2", "3"]], None, "a; a; b.\n1; 2; 3."),
        ([["", "Mon"], ["Ann", "9\n to 5"]], True, "Ann; Mon: 9 to 5."),
        ([["only"]], None, "only."),
        ([["Model", "Price"]], True, "Model: Price."),
        ([["Model"], ["x", "y"]], True, "Model: x; y."),
        ([[" ", ""]], None, ""),
        ([], None, ""),
    ],
)
def test_a_row_names_its_headers(rows: list[list[str]], headed: bool | None, expected: str) -> None:
    assert table_text(rows, headed=headed) == expected


def test_a_caption_is_a_line_of_its_own() -> None:
    assert table_text([["a", "b"], ["1", "2"]], headed=True, caption="Pumps:").startswith(
        "Pumps.\n"
    )


MARKDOWN = """Before.

| Course | Place \\| room |
|:--|---:|
| First aid | Oslo |
Forklift | Porto

a | b
--- | --- | ---
"""


def test_a_table_of_markdown() -> None:
    text = with_markdown_tables(MARKDOWN)
    rows = "Course: First aid; Place | room: Oslo.\nCourse: Forklift; Place | room: Porto."
    assert text == f"Before.\n\n{rows}\n\na | b\n--- | --- | ---\n"


def test_tables_of_a_page(tmp_path: Path) -> None:
    need("selectolax")
    page = """<main><table><tr><td>Menu</td><td><table><caption>Shifts</caption>
        <tr><th>Day</th><th>Shift</th><th>Head</th></tr>
        <tr><td rowspan="2">Monday</td><td>Early</td><td>Ann &amp; Bo</td></tr>
        <tr><td>Late</td><td>Cy</td></tr>
        <tr><td colspan="99999999999999999999">closed</td></tr>
        </table></td></tr></table></main>"""
    (tmp_path / "page.html").write_text(page)
    first = next(iter(read_files([tmp_path / "page.html"]))).found
    assert isinstance(first, Document)
    lines = first.text.splitlines()
    assert "Day: Monday; Shift: Early; Head: Ann & Bo." in lines
    assert "Day: Monday; Shift: Late; Head: Cy." in lines
    assert lines[lines.index("Shifts.") - 2].startswith("Menu")
    assert "Day: closed; Shift: closed; Head: closed." in lines


def test_a_row_is_never_cut() -> None:
    rows = [
        ["Place", "Contact", "Task"],
        *([f"St. Gallen {n}", "Dr. A. Berg. Or Bo!", "Ask first. Then call."] for n in range(60)),
    ]
    text = f"Contacts.\n{table_text(rows, headed=True)}"
    assert len(cut(text)) > 3
    passages = passages_of(Document("d", "", text))
    for passage in passages[1:]:
        assert passage.passage.text.startswith("Place: St. Gallen")
    for passage in passages:
        assert passage.passage.text.endswith("Then call.")


def test_a_large_table_is_read_in_linear_time() -> None:
    text = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 20_000
    assert with_markdown_tables(text).count("a: 1; b: 2.") == 20_000
    assert with_markdown_tables("|" * 100_000 + "\n" + "|-" * 50_000)


def ruled(rows: list[list[str]], top: int = 740, before: str = "") -> str:
    """Return the operators that draw a table with lines, below a line of text."""
    high, wide = 20, 150
    bottom, right = top - high * len(rows), 60 + wide * len(rows[0])
    lines = [f"60 {top - high * n} m {right} {top - high * n} l S" for n in range(len(rows) + 1)]
    lines += [
        f"{60 + wide * n} {top} m {60 + wide * n} {bottom} l S" for n in range(len(rows[0]) + 1)
    ]
    texts = [f"BT /F 10 Tf 60 {top + 10} Td ({before}) Tj ET"] if before else []
    texts += [
        f"BT /F 10 Tf {64 + wide * column} {top - high * at - 14} Td ({cell}) Tj ET"
        for at, row in enumerate(rows)
        for column, cell in enumerate(row)
    ]
    return "\n".join([*lines, *texts])


WRAPPED = """\
All of it is valid from May on.
  Article       Supplier              Delivery      Shelf
                                      time
Valve        Supplier 9859            3 weeks      R6-
C100         GmbH, Hamburg                         238
Valve        Supplier 9460            6 weeks      R4-
C101         GmbH, Hamburg                         832
Valve        Supplier 8948            3 weeks      R7-
C102         GmbH, Hamburg                         263
The end.
"""
SPARSE = """\
Model      Price      Delivery
HP-20      1,240      2 weeks
HP-35                 3 weeks
HP-60      3,150
           or more
HP-90      5,480      6 weeks
"""
PROSE = """\
The company was founded in     The crisis of 1974 cost half
1950 by two brothers who       of the orders. The company
had worked in a mill.          survived it.
"""


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (
            WRAPPED,
            "All of it is valid from May on.\n"
            "Article: Valve C100; Supplier: Supplier 9859 GmbH, Hamburg; Delivery time: 3 weeks; "
            "Shelf: R6-238.\n"
            "Article: Valve C101; Supplier: Supplier 9460 GmbH, Hamburg; Delivery time: 6 weeks; "
            "Shelf: R4-832.\n"
            "Article: Valve C102; Supplier: Supplier 8948 GmbH, Hamburg; Delivery time: 3 weeks; "
            "Shelf: R7-263.\nThe end.",
        ),
        (
            SPARSE,
            "Model: HP-20; Price: 1,240; Delivery: 2 weeks.\nModel: HP-35; Delivery: 3 weeks.\n"
            "Model: HP-60; Price: 3,150 or more.\nModel: HP-90; Price: 5,480; Delivery: 6 weeks.",
        ),
    ],
)
def test_a_table_without_lines(layout: str, text: str) -> None:
    assert gapped_text(layout) == (text, True)


def test_columns_of_prose_are_no_table() -> None:
    text, found = gapped_text(PROSE)
    assert not found
    assert text.startswith("The company was founded in The crisis of 1974 cost half\n")


HEADER = ["Part", "Price", "Place"]


def parts(first: int, last: int) -> list[list[str]]:
    return [[f"Part {n}", f"{n}.50 EUR", f"Shelf {n}"] for n in range(first, last)]


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("before", ["", "Spare parts of Varde"])
def test_a_table_goes_on_over_pages(tmp_path: Path, repeated: bool, before: str) -> None:
    need("pypdf", "pdfplumber")
    pages = [
        ruled(([HEADER] if repeated or not at else []) + parts(at, at + 10), before=before)
        for at in range(0, 40, 10)
    ]
    (tmp_path / "parts.pdf").write_bytes(pdf(pages, drawn=True))
    found = [entry.found for entry in read_files([tmp_path / "parts.pdf"])]
    texts = [each.text for each in found if isinstance(each, Document)]
    assert "\n".join(texts).split("\n") == [
        f"Part: Part {n}; Price: {n}.50 EUR; Place: Shelf {n}." for n in range(40)
    ]  # the line above, which each page repeats, is left out


def test_another_table_has_its_own_header(tmp_path: Path) -> None:
    need("pypdf", "pdfplumber")
    other = ruled(
        [["Fault", "Cause", "Remedy"], ["Noise", "Air", "Open the vent"]], before="Faults"
    )
    (tmp_path / "a.pdf").write_bytes(pdf([ruled([HEADER, *parts(0, 3)]), other], drawn=True))
    *_, last = [
        each.text for each in (entry.found for entry in read_files([tmp_path / "a.pdf"]))
        if isinstance(each, Document)
    ]  # fmt: skip
    assert last == "Faults\nFault: Noise; Cause: Air; Remedy: Open the vent."
