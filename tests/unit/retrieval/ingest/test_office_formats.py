"""HTML, PDF and DOCX as people have them: pages and headings are metadata, and what cannot be read
is named."""

from __future__ import annotations

import importlib.util
import io
import sys
import zipfile
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.retrieval.documents import Document
from service.retrieval.ingest.formats import base, child, detect
from service.retrieval.ingest.formats import pdf as pdf_format
from service.retrieval.ingest.formats.base import STANDARD_INPUT
from service.retrieval.ingest.formats.pages import decoded
from service.retrieval.ingest.formats.sheets import ROWS
from service.retrieval.ingest.sources import (
    SourceFile,
    SourceProblem,
    WholeFile,
    read_files,
    read_source,
)
from tests.conftest import need
from tests.support.office import IMAGE, docx, pdf

need("selectolax", "mammoth", "pypdf", "pdfplumber")

PAGE = """<!DOCTYPE html><html><head><title>The manual</title>
<link rel="canonical" href="https://example.org/manual#top"><style>p { color: red }</style></head>
<body><header>Site name</header><nav>Home | About</nav><main>
<p>Begin <b>here</b>,<br>or there.</p>
<h1 id="install">Install</h1><p>Run the installer.</p>
<h2>Linux</h2><div>Use <code>apt</code>.<p>Then <a href="/x">restart</a>.</p>At last, log in.</div>
<h2 id="linux">Other &amp; older</h2><table><tr><th>Name<th>Age</tr><tr><td>BSD<td>48</tr></table>
<script>alert("no text")</script><h3 id="7">Notes</h3><ul><li>One.<li>Two.</ul>
<pre>a  b
  c</pre></main><footer>Imprint</footer></body></html>"""


def read(path: Path, content: bytes | str | None = None) -> tuple[list[Document], list[str]]:
    """Documents, and problems without the folder."""
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    found = [entry.found for entry in read_files([path])]
    problems = [str(each) for each in found if isinstance(each, SourceProblem)]
    return (
        [each for each in found if isinstance(each, Document)],
        [each.removeprefix(str(path)) for each in problems],
    )


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read documents without a child, whose modules a test cannot change."""

    def read_here(reader: str, source: base.Input, content: bytes) -> Any:
        module, _, name = reader.partition(":")
        return getattr(importlib.import_module(module), name).parse(source, content)

    monkeypatch.setattr(child, "in_child", read_here)


def test_a_page_is_cut_at_its_headings(tmp_path: Path) -> None:
    found, problems = read(tmp_path / "manual.html", PAGE)
    assert not problems
    assert [(each.id, each.title, each.text) for each in found] == [
        ("manual.html#section=1", "The manual", "Begin here,\nor there."),
        ("manual.html#install", "The manual › Install", "Run the installer."),
        (
            "manual.html#section=3",
            "The manual › Install › Linux",
            "Use apt.\n\nThen restart.\n\nAt last, log in.",
        ),
        ("manual.html#linux", "The manual › Install › Other & older", "Name: BSD; Age: 48."),
        (
            "manual.html#section=5",
            "The manual › Install › Other & older › Notes",
            "One.\n\nTwo.\n\na  b\nc",
        ),
    ]
    url = "https://example.org/manual"
    assert [dict(each.metadata) for each in found] == [
        {"url": url},
        {"url": f"{url}#install", "heading": "Install"},
        {"url": url, "heading": "Linux"},
        {"url": f"{url}#linux", "heading": "Other & older"},
        {"url": f"{url}#7", "heading": "Notes"},
    ]


def test_a_plain_page_is_one_document(tmp_path: Path) -> None:
    content = "<title>T</title><h1>T</h1>Some text<p>in two parts."
    found, problems = read(tmp_path / "a.htm", content)
    assert not problems
    (page,) = found
    assert (page.id, page.title, page.text) == ("a.htm", "T", "Some text\n\nin two parts.")
    assert dict(page.metadata) == {"heading": "T"}


def test_anchors_that_occur_twice_stay_apart(tmp_path: Path) -> None:
    content = "<h1 id=a>One</h1>1<h1 id=a>Two</h1>2<h1 id=%s>Three</h1>3" % ("x" * 600)
    found, problems = read(tmp_path / "a.html", content)
    assert not problems
    assert [each.id for each in found] == ["a.html#a", "a.html#section=2", "a.html#section=3"]


def test_pages_without_text_and_hostile_ones(tmp_path: Path) -> None:
    path = tmp_path / "app.html"
    assert read(path, "<title>App</title><div id=root></div><script>run()</script>") == (
        [],
        [": the page has no text; if scripts write it, save the page from a browser after it has "
         "loaded"],
    )  # fmt: skip
    found, problems = read(path, "<div>" * 20_000 + "deep" + "<b>" * 2_000 + "deeper")
    assert not problems
    assert " ".join(each.text for each in found).split() == ["deepdeeper"]
    found, _ = read(path, "<p>&lt;script&gt; is text.")
    assert found[0].text == "<script> is text."


@pytest.mark.parametrize(
    "content",
    [
        "café – ok".encode(),
        "\ufeffcafé – ok".encode(),
        "\ufeffcafé – ok".encode("utf-16-le"),
        "\ufeffcafé – ok".encode("utf-16-be"),
        "<meta charset=windows-1252>café – ok".encode("cp1252"),
        '<meta content="text/html; charset=no-such-thing">café – ok'.encode(),
        "<meta charset=iso-8859-1>café – ok".encode("cp1252"),
        "<meta charset=undefined>café – ok".encode(),
        "<meta charset=utf-16>café – ok.".encode()[:-1],
        "<meta charset=UTF-7>+2AA- café – ok".encode(),
        "café – ok".encode("cp1252"),
    ],
)
def test_how_a_page_is_decoded(content: bytes) -> None:
    assert decoded(content).endswith("café – ok")


def test_a_pdf_is_read_by_page(tmp_path: Path) -> None:
    first = "The engine was inven-\nted by Otto (a German\nengineer)."
    found, problems = read(tmp_path / "engine.pdf", pdf([first, "", "It was sold."], "Engines"))
    assert not problems
    assert [(each.id, each.title, dict(each.metadata)) for each in found] == [
        ("engine.pdf#page=1", "Engines", {"page": 1}),
        ("engine.pdf#page=3", "Engines", {"page": 3}),
    ]
    assert found[0].text == "The engine was invented by Otto (a German\nengineer)."
    untitled, _ = read(tmp_path / "plain.pdf", pdf(["Text."]))
    assert untitled[0].title == "plain"


def test_scans_are_named_without_what_recognises_their_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    hidden = {"rapidocr", "onnxruntime"}
    found_there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in hidden else found_there(name)
    )
    path = tmp_path / "scan.pdf"
    how = "needs rapidocr, onnxruntime; run: pip install '.[ocr]' in the checkout"
    said = ": the PDF has no text: its pages (2) are images, as of a scan; text in images"
    assert read(path, pdf([IMAGE, IMAGE])) == ([], [f"{said} {how}"])
    found, problems = read(path, pdf(["Text.", IMAGE, "More.", IMAGE]))
    assert [each.metadata["page"] for each in found] == [1, 3]
    assert problems == [f": pages without text, only images: 2, 4; text in images {how}"]
    assert read(tmp_path / "a.jpg", b"\xff\xd8\xff") == ([], [f": PNG, JPEG or TIFF {how}"])
    said = ": the PDF has no text: its pages (1) have no text; is it the right file?"
    assert read(path, pdf([""])) == ([], [said])


def test_a_pdf_with_a_password_is_named_and_one_without_is_read(tmp_path: Path) -> None:
    from pypdf import PdfWriter

    for user, problems in (
        ("", []),
        ("pw", [": the PDF needs a password; save a copy without one"]),
    ):
        writer = PdfWriter(clone_from=io.BytesIO(pdf(["Secret text."])))
        writer.encrypt(user, "owner", algorithm="AES-256")
        content = io.BytesIO()
        writer.write(content)
        found, named = read(tmp_path / "a.pdf", content.getvalue())
        assert named == problems
        assert [each.text for each in found] == ([] if problems else ["Secret text."])


@pytest.mark.parametrize("name", ["a.pdf", "a.docx"])
def test_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    whole = pdf(["Some text."] * 3) if name == "a.pdf" else docx([("Normal", "Some text.")])
    for content in (whole[: len(whole) // 2], b"no such file", whole[:10] + b"\xff" * 2_000):
        found, problems = read(tmp_path / name, content)
        assert found or problems
        assert all("again" in each or "not a DOCX" in each or "no text" in each or "cannot be read"
                   in each for each in problems)  # fmt: skip


def test_a_docx_is_cut_at_its_headings(tmp_path: Path) -> None:
    paragraphs = [
        ("Title", "Report of the year"),
        ("Normal", "A summary."),
        ("Heading 1", "Sales"),
        ("Normal", "They <rose>."),
        ("Heading 2", "Abroad"),
        ("Normal", "They fell."),
        ("Normal", "By half."),
    ]
    found, problems = read(tmp_path / "r.docx", docx(paragraphs))
    assert not problems
    assert [(each.id, each.title, each.text) for each in found] == [
        ("r.docx#section=1", "Report of the year", "A summary."),
        ("r.docx#section=2", "Report of the year › Sales", "They <rose>."),
        ("r.docx#section=3", "Report of the year › Sales › Abroad", "They fell.\n\nBy half."),
    ]
    assert [each.metadata["heading"] for each in found][1:] == ["Sales", "Abroad"]


def test_a_docx_without_text_or_with_too_much_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.docx"
    assert read(path, docx([("Normal", " ")])) == ([], [": the document has no text"])
    in_this_process(monkeypatch)
    monkeypatch.setattr(base, "MOST_UNPACKED", 10_000)
    found, problems = read(path, docx([("Normal", "x" * 20_000)]))
    assert (found, problems) == ([], [": its text is larger than 10,000 bytes; split it"])
    monkeypatch.setattr(base, "LARGEST", 100)
    assert "larger than" in read(path)[1][0]


def test_a_title_without_a_text_of_its_own_is_the_title(tmp_path: Path) -> None:
    paragraphs = [("Title", "Recipes"), ("Heading 1", "Rye"), ("", "It rests."),
                  ("Heading 1", "Bun"), ("", "It is new.")]  # fmt: skip
    found, _ = read(tmp_path / "r.docx", docx(paragraphs))
    assert [each.title for each in found] == ["Recipes › Rye", "Recipes › Bun"]


@pytest.mark.parametrize(
    ("name", "content", "ids"),
    [
        ("a.pdf", pdf(["One.", IMAGE, "Three."]), {"a.pdf#page=1", "a.pdf#page=3"}),
        ("a.html", "<p>One.<h1>Two</h1>More.", {"a.html#section=1", "a.html#section=2"}),
        ("a.htm", "<p>One.", {"a.htm"}),
        ("a.docx", docx([("Normal", "One.")]), {"a.docx"}),
        ("a.pdf", pdf([IMAGE]), None),
        ("a.html", "<script>1</script>", None),
        ("a.docx", b"no such file", None),
        (f"{'a' * 505}.html", "<p>One.<h1>Two</h1>More.", None),  # the ids are too long
        ("a.md", "# One", {"a.md"}),
        ("a.txt", "\n", None),
    ],
)
def test_a_file_that_was_read_whole_names_its_documents(
    tmp_path: Path, name: str, content: bytes | str, ids: set[str] | None
) -> None:
    (tmp_path / "x").write_bytes(content.encode() if isinstance(content, str) else content)
    source = SourceFile(tmp_path / "x", name)
    found = [entry.found for entry in read_source(source, detect(Path(name), b""))]
    whole = [each for each in found if isinstance(each, WholeFile)]
    assert whole == ([] if ids is None else [WholeFile(name, frozenset(ids))])


def test_a_page_that_cannot_be_read_leaves_the_file_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(["One.", "Two."]))
    in_this_process(monkeypatch)
    monkeypatch.setattr(pdf_format, "_text", lambda page, _: ["One."][page.page_number])
    found = [entry.found for entry in read_files([path])]
    assert [type(each) for each in found] == [Document, SourceProblem]


@pytest.mark.parametrize("content", [b"<html><p>Text.", pdf(["Text."])])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    given = SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content)))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "stdin", given)
    (found,) = [entry.found for entry in read_files([STANDARD_INPUT])]
    assert isinstance(found, Document)
    assert (found.text, len(found.id)) == ("Text.", 32)


@pytest.mark.parametrize(
    ("name", "content", "package"),
    [
        ("a.html", b"<p>Text.", "selectolax"),
        ("a.pdf", pdf(["Text."]), "pypdf"),
        ("a.docx", docx([("Normal", "Text.")]), "mammoth"),
    ],
)
def test_without_the_extra_what_to_install_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, package: str
) -> None:
    found = importlib.util.find_spec

    def without(asked: str, *rest: Any) -> Any:
        return None if asked == package else found(asked, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    documents, (problem,) = read(tmp_path / name, content)
    assert not documents
    assert problem.endswith(f"needs {package}; run: pip install '.[documents]' in the checkout")


# CSV, TSV, XLSX and PPTX as people have them, and PDFs with tables, headers and footers.


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
