"""HTML, PDF and DOCX as people have them: pages and headings are metadata, and what cannot be read
is named."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.retrieval.documents import Document
from service.retrieval.ingest.formats import base, child, detect
from service.retrieval.ingest.formats import pdf as pdf_format
from service.retrieval.ingest.formats.base import STANDARD_INPUT
from service.retrieval.ingest.formats.pages import decoded
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
