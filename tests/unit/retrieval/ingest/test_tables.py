"""Tables become lines of rows that name their headers, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.retrieval.documents import Document, cut, passages_of
from service.retrieval.ingest.formats.tables import table_text, with_markdown_tables
from service.retrieval.ingest.sources import read_files
from tests.conftest import need

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
