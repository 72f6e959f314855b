"""CSV, TSV, XLSX and PPTX as people have them, and PDFs with tables, headers and footers."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from service.retrieval.ingest.formats.sheets import ROWS
from tests.conftest import need
from tests.support.office import docx, pdf
from tests.unit.retrieval.ingest.test_office_formats import read

openpyxl, pptx = need("openpyxl"), need("pptx")
OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600  # Office before 2007, or encrypted


def xlsx(*sheets: Sequence[Sequence[Any]], merged: Sequence[str] = (), form: str = "") -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for number, rows in enumerate(sheets, 1):
        sheet = book.create_sheet(f"Sheet {number}")
        for row in rows:
            sheet.append(row)
        for each in merged:
            sheet.merge_cells(each)
        if form:
            sheet["B2"].number_format = form
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("p.csv", "Model,Price\nHP-20,\"1,240\"\n", "Model: HP-20; Price: 1,240."),
        ("p.csv", "\ufeffModel;Preis\r\nHP;1,5\r\n", "Model: HP; Preis: 1,5."),
        ("p.csv", "Größe;Straße\nS;Öl".encode("cp1252"), "Größe: S; Straße: Öl."),
        ("p.csv", "\ufeffA\tB\n1\t2".encode("utf-16-le"), "A: 1; B: 2."),
        ("p.tsv", "A\tB, C\nx\ty, z\n", "A: x; B, C: y, z."),
        ("p.csv", "Ann,12\nBo,7\n", "Ann: 12.\nBo: 7."),
        ("p.csv", "Name,2024\nBo,7\n", "Name: Bo; 2024: 7."),
        ("p.csv", "الاسم,السعر\nمضخة,12\n", "الاسم: مضخة; السعر: 12."),
        ("p.csv", "Only\none\ncolumn\n", "Only: one.\nOnly: column."),
        ("p.csv", "A,B\n\n,\n1,2,3\n", "A: 1; B: 2; 3."),
    ],
)  # fmt: skip
def test_rows_of_csv(tmp_path: Path, name: str, content: str | bytes, text: str) -> None:
    found, problems = read(tmp_path / name, content)
    assert ([each.text for each in found], problems) == ([text], [])
    assert found[0].title == "p"


def test_a_long_table_is_several_documents_that_repeat_the_header(tmp_path: Path) -> None:
    content = "Name,Age\n" + "".join(f"n{n},{n}\n" for n in range(ROWS + 1))
    found, _ = read(tmp_path / "v2-2024.csv", content)
    assert [each.id for each in found] == ["v2-2024.csv#row=2-101", "v2-2024.csv#row=102-102"]
    assert found[1].text == "Name: n100; Age: 100."
    assert dict(found[0].metadata) == {"date": "2024", "version": "2"}


def test_a_quotation_mark_that_never_closes_is_named(tmp_path: Path) -> None:
    found, (problem,) = read(tmp_path / "a.csv", 'A,B\n1,2\n"open,3\n4,5\n')
    assert [each.text for each in found] == ["A: 1; B: 2."]
    assert "not valid CSV from here on" in problem
    assert read(tmp_path / "b.csv", b"a,b\n\0,1")[1] == [": not a text file: NUL at character 5"]


def test_the_sheets_of_a_workbook(tmp_path: Path) -> None:
    prices = [
        ["Prices of pumps"], ["Model", "Price", "From"], ["HP-20", 1240.5, date(2025, 3, 1)], [],
        ["Address", "Main Street"], ["Desk", True],
    ]  # fmt: skip
    content = xlsx(prices, [["Name", "Share"], ["Ann", 0.125]], [])
    found, problems = read(tmp_path / "p.xlsx", content)
    assert not problems
    assert [(each.id, each.title, each.text) for each in found] == [
        ("p.xlsx#sheet=1&row=3-3", "p › Sheet 1 › Prices of pumps",
         "Model: HP-20; Price: 1240.5; From: 2025-03-01."),
        ("p.xlsx#sheet=1&row=5-6", "p › Sheet 1", "Address: Main Street.\nDesk: True."),
        ("p.xlsx#sheet=2&row=2-2", "p › Sheet 2", "Name: Ann; Share: 0.125."),
    ]  # fmt: skip
    assert found[2].metadata["sheet"] == "Sheet 2"


@pytest.mark.parametrize(
    ("value", "form", "shown"),
    [
        (0.125, "0.0%", "12.5%"),
        (1240, '#,##0.00 "EUR"', "1240.00 EUR"),
        (3, "[$€-407] #,##0", "3 €"),
        (0.1 + 0.2, "General", "0.3"),
        (10**15, "General", "1000000000000000"),
        (datetime(2025, 3, 1, 12, 30), "yyyy-mm-dd hh:mm", "2025-03-01 12:30:00"),
        ("a\nb", "@", "a b"),
    ],
)
def test_values_are_written_as_the_program_shows_them(
    tmp_path: Path, value: Any, form: str, shown: str
) -> None:
    rows = [["Name", "Value", "Note"], ["x", value, "y"]]
    found, _ = read(tmp_path / "v.xlsx", xlsx(rows, form=form))
    assert found[0].text == f"Name: x; Value: {shown}; Note: y."


def test_merged_cells_hold_in_each_row_and_column(tmp_path: Path) -> None:
    rows = [["Region", "2024", None, "2025", None], [None, "Q1", "Q2", "Q1", "Q2"],
            ["North", 11, 12, 13, 14], [None, 21, 22, 23, 24]]  # fmt: skip
    merged = ["B1:C1", "D1:E1", "A1:A2", "A3:A4"]
    found, _ = read(tmp_path / "m.xlsx", xlsx(rows, merged=merged))
    assert found[0].text == (
        "Region: North; 2024 Q1: 11; 2024 Q2: 12; 2025 Q1: 13; 2025 Q2: 14.\n"
        "Region: North; 2024 Q1: 21; 2024 Q2: 22; 2025 Q1: 23; 2025 Q2: 24."
    )
    far = read(tmp_path / "far.xlsx", xlsx([["A", "B", "C"], [1, 2, 3]], merged=["A2:A900"]))
    assert far[0][0].text == "A: 1; B: 2; C: 3."


def test_workbooks_that_cannot_be_read_whole_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    found, problems = read(path, xlsx([["A", "B", "Sum"], [1, 2, "=A2+B2"], [3, 4, None]]))
    assert found[0].text == "A: 1; B: 2.\nA: 3; B: 4."
    assert problems == [
        ": formulas without a stored value (1) were left out; open the file in Excel or "
        "LibreOffice and save it"
    ]
    assert read(path, xlsx([])) == ([], [": the sheets are empty"])
    whole = xlsx([["A", "B"], ["x", 1]])
    for name, content in (("a.xlsx", whole[:400]), ("a.xlsx", b"no such file"), ("a.xlsx", OLD),
                          ("a.docx", OLD), ("a.pptx", OLD), ("a.pptx", b"PK")):  # fmt: skip
        found, (problem,) = read(tmp_path / name, content)
        assert not found
        assert ("without a password" in problem) == (content == OLD)
        assert "save" in problem
    damaged = io.BytesIO()
    with zipfile.ZipFile(damaged, "w") as file:
        file.writestr("xl/workbook.xml", "<none")
    assert "the XLSX file is damaged" in read(path, damaged.getvalue())[1][0]


def test_a_wrong_extension_does_not_matter(tmp_path: Path) -> None:
    cases = ("a.docx", xlsx([["A", "B"], ["x", 1]])), ("a.xlsx", docx([("Normal", "Some text.")]))
    for name, content in (*cases, ("a.txt", pdf(["Some text."]))):
        found, problems = read(tmp_path / name, content)
        assert (len(found), problems) == (1, [])


def test_slides(tmp_path: Path) -> None:
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    slide.shapes.title.text = "Prices"
    cells = slide.shapes.add_table(3, 2, 0, 0, 900_000, 900_000).table
    for at, text in enumerate(["Model", "Price", "HP-20", "12 EUR", "HP-35", "19 EUR"]):
        cells.cell(at // 2, at % 2).text = text
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "Without tax."
    slide.notes_slide.notes_text_frame.text = "Say it slowly."
    deck.slides.add_slide(deck.slide_layouts[6])
    out = io.BytesIO()
    deck.save(out)
    (found,), problems = read(tmp_path / "talk.pptx", out.getvalue())
    assert (found.id, found.title, problems) == ("talk.pptx#slide=1", "talk › Prices", [])
    assert found.text == (
        "Model: HP-20; Price: 12 EUR.\nModel: HP-35; Price: 19 EUR.\n\nWithout tax.\n\n"
        "Say it slowly."
    )
    empty = io.BytesIO()
    pptx.Presentation().save(empty)
    assert read(tmp_path / "none.pptx", empty.getvalue()) == ([], [": the slides have no text"])


def table_pdf(pages: Sequence[Sequence[Sequence[str]]], *, ruled: bool, before: str = "") -> bytes:
    """A PDF with a table of columns of 100 points on each page, below a line of text."""
    drawn = list[str]()
    for rows in pages:
        operators = [f"BT /F 12 Tf 72 740 Td ({before}) Tj ET"] if before else []
        for r, row in enumerate(rows):
            for c, cell in enumerate(row):
                x, y = 72 + 100 * c, 700 - 20 * r
                operators.append(f"BT /F 10 Tf {x + 3} {y + 5} Td ({cell}) Tj ET")
                operators += [f"{x} {y} 100 20 re S"] if ruled else []
        drawn.append(" ".join(operators))
    return pdf(drawn, drawn=True)


PRICES = [["Model", "Price", "Stock"], ["HP-20", "1,240 EUR", "7"], ["HP-35", "", "5"]]


def test_tables_of_a_pdf(tmp_path: Path) -> None:
    more = [["HP-60", "2,100 EUR", "1"], ["HP-80", "2,900 EUR", "3"]]
    found, problems = read(
        tmp_path / "p.pdf", table_pdf([PRICES, more], ruled=True, before="All prices.")
    )
    assert not problems
    assert [each.text for each in found] == [
        "All prices.\nModel: HP-20; Price: 1,240 EUR; Stock: 7.\nModel: HP-35; Stock: 5.",
        "All prices.\nModel: HP-60; Price: 2,100 EUR; Stock: 1.\n"
        "Model: HP-80; Price: 2,900 EUR; Stock: 3.",  # it goes on from the page before
    ]
    rows = [PRICES[0], PRICES[1], *more]
    found, _ = read(tmp_path / "q.pdf", table_pdf([rows], ruled=False, before="All prices."))
    assert "Model: HP-60; Price: 2,100 EUR; Stock: 1." in found[0].text.splitlines()
    assert found[0].text.startswith("All prices.")


def test_headers_and_footers_that_repeat_are_left_out(tmp_path: Path) -> None:
    texts = [f"Acme Ltd. - Rules\nFact {each}.\nMore text here.\nAnd more.\nPage {n} of 5"
             for n, each in enumerate("abcde", 1)]  # fmt: skip
    found, problems = read(tmp_path / "r.pdf", pdf(texts))
    assert not problems
    kept = [f"Fact {each}.\nMore text here." for each in "abcde"]
    assert [each.text for each in found] == kept
    two, _ = read(tmp_path / "two.pdf", pdf(["Same.", "Same."]))
    assert len(two) == 2
