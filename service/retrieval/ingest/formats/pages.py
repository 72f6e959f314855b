"""Formats of documents for people: HTML, DOCX, PDF, and plain text."""

from __future__ import annotations

import codecs
import io
import logging
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final, cast

from service.retrieval.documents import LONGEST_TITLE
from service.retrieval.ingest.formats.base import (
    BOM,
    LARGEST,
    STANDARD_INPUT,
    AllRead,
    Input,
    SourceRow,
    made,
    not_utf8,
    plain_suffix,
    reads_whole,
)
from service.retrieval.ingest.formats.editions import edition, front_matter
from service.retrieval.ingest.formats.tables import html_table, with_markdown_tables

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader
    from selectolax.lexbor import LexborHTMLParser, LexborNode

HTML: Final = frozenset({".html", ".htm", ".xhtml"})
NO_TEXT: Final = (
    "the page has no text; if scripts write it, save the page from a browser after it has loaded"
)
SECTIONS: Final = {"h1": 1, "h2": 2, "h3": 3}  # headings that begin a section, with their level
LONGEST_ANCHOR: Final = 100  # characters; a longer anchor would make the id too long
_ASIDE: Final = (
    "script, style, noscript, template, nav, footer, aside, form, button, svg, iframe, object, "
    "[hidden], [aria-hidden=true], [role=navigation], [role=banner], [role=contentinfo]"
)
_BLOCKS: Final = frozenset([
    "address", "article", "blockquote", "body", "caption", "dd", "details", "div", "dl", "dt",
    "fieldset", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "html",
    "legend", "li", "main", "ol", "p", "pre", "section", "summary", "table", "tbody", "tfoot",
    "thead", "tr", "ul",
])  # fmt: skip
_DECLARED: Final = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]{1,40})""", re.I)
# Labels of Windows-1252 in pages.
LATIN: Final = frozenset(["iso-8859-1", "iso8859-1", "latin-1", "latin1", "us-ascii", "ascii"])
_SPACE: Final = re.compile(r"\s+")


@dataclass(slots=True)
class Section:
    """A part of a page: the headings above it, the anchor of its own heading, and its text."""

    headings: tuple[str, ...]
    anchor: str
    text: str


@reads_whole("HTML", "selectolax")
def read_html(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield a document for each section. Its `url` is the page's canonical address."""
    yield from rows_of(source, decoded(content))


def rows_of(source: Input, html: str) -> Iterator[SourceRow]:
    """Yield the sections of a page with text as documents, or a problem if there is no text."""
    from selectolax.lexbor import LexborHTMLParser  # noqa: PLC0415

    tree = LexborHTMLParser(html)
    title, url = _title(tree), _address(tree)
    sections = list(_sections(tree))
    if not sections:
        yield SourceRow(0, NO_TEXT)
    titled = title or _first_heading(tree)
    if not titled and source.path != STANDARD_INPUT:
        titled = source.path.stem
    used: set[str] = set()
    for number, section in enumerate(sections, 1):
        anchor = section.anchor
        if not anchor or anchor in used or anchor.isdigit() or len(anchor) > LONGEST_ANCHOR:
            anchor = f"section={number}"
        used.add(anchor)
        value = _value(section, titled, url) | edition(source.label)
        if source.path != STANDARD_INPUT:
            value["id"] = source.label if len(sections) == 1 else f"{source.label}#{anchor}"
        yield SourceRow(number, made(value))
    if sections:
        yield SourceRow(0, AllRead.ALL_READ)


def looks_like_html(start: bytes) -> bool:
    """Whether content, without leading white space, begins like an HTML page."""
    return start[:32].lower().startswith((b"<!doctype html", b"<html"))


def decoded(content: bytes) -> str:
    """Decode a page as browsers do: by its byte order mark, else as it declares, else as UTF-8,
    else as Windows-1252."""
    for mark, encoding in (
        (BOM, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if content.startswith(mark):
            return content.removeprefix(mark).decode(encoding, "replace")
    declared = _DECLARED.search(content[:4_096])
    for encoding in (_meant(declared[1].decode()) if declared else "utf-8", "utf-8"):
        try:
            return content.decode(encoding)
        except (UnicodeError, LookupError):  # also of codecs that are no encoding of pages
            continue
    return content.decode("cp1252", "replace")


def _meant(declared: str) -> str:
    """Return the encoding that a declaration means (WHATWG, Encoding, "Names and labels"). A page
    whose declaration can be read is not in UTF-16."""
    name = declared.lower().replace("_", "-")
    if name.startswith(("utf-7", "utf-16", "utf-32", "ucs", "unicode")):
        return "utf-8"
    return "cp1252" if name in LATIN else declared


def _value(section: Section, title: str, url: str) -> dict[str, Any]:
    """Return the fields of a section's document. Its title, which is searched, includes the path of
    headings, without a first one that only repeats the title.
    """
    path = section.headings
    if path and path[0] in title:
        path = path[1:]
    heading = ": ".join(part for part in (title, " > ".join(path)) if part)
    value: dict[str, Any] = {"title": heading[:LONGEST_TITLE], "text": section.text}
    if section.headings:
        value["heading"] = section.headings[-1]
    if url:
        value["url"] = f"{url}#{section.anchor}" if section.anchor else url
    return value


def _title(tree: LexborHTMLParser) -> str:
    found = tree.css_first("head title")
    return _plain(found.text()) if found else ""


def _first_heading(tree: LexborHTMLParser) -> str:
    """Return the first heading, even one without text below it. DOCX files use it as the title."""
    root = _content(tree)
    found = root.css_first(", ".join(SECTIONS)) if root else None
    return _plain(found.text()) if found else ""


def _address(tree: LexborHTMLParser) -> str:
    """Return the canonical address without a fragment; empty if the page has none."""
    for selector, attribute in (
        ("link[rel=canonical]", "href"),
        ('meta[property="og:url"]', "content"),
    ):
        found = tree.css_first(selector)
        address = (found.attributes.get(attribute) or "").strip() if found else ""
        if address.startswith(("http://", "https://")):
            return address.partition("#")[0]
    return ""


def _sections(tree: LexborHTMLParser) -> Iterator[Section]:
    """Yield the sections with text, in order."""
    path: list[tuple[int, str]] = []
    anchor, blocks = "", list[str]()

    def section() -> Iterator[Section]:
        if blocks:
            yield Section(tuple(text for _, text in path), anchor, "\n\n".join(blocks))

    for node, text in _blocks(tree):
        level = SECTIONS.get(node.tag or "")
        if level is None:
            blocks.append(text)
            continue
        yield from section()
        path = [each for each in path if each[0] < level]
        path.append((level, _plain(text)))
        anchor, blocks = (node.attributes.get("id") or "").strip(), []
    yield from section()


def _blocks(tree: LexborHTMLParser) -> Iterator[tuple[LexborNode, str]]:
    """Yield each block element that directly contains text, and this text, in order. The traversal
    is not recursive, because pages may be nested without limit.
    """
    root = _content(tree)
    if root is None:
        return
    _write_tables(root)
    current, parts, cell = root, list[str](), False
    for node in root.traverse(include_text=True):
        tag = node.tag or ""
        if tag == "br":
            parts.append("\n")
        elif tag in {"td", "th"}:
            cell = True
        elif tag == "-text":
            block = _block_of(node, root)
            if block.mem_id != current.mem_id:
                if text := _tidy("".join(parts)):
                    yield current, text
                current, parts = block, []
            text = node.text_content or ""
            if cell and text.strip():
                parts += [" | "] if parts else []
                cell = False
            parts.append(text if block.tag == "pre" else _SPACE.sub(" ", text))
    if text := _tidy("".join(parts)):
        yield current, text


def _write_tables(root: LexborNode) -> None:
    """Replace tables by lines of rows, but for those around other tables, which are layout."""
    from selectolax.lexbor import LexborHTMLParser  # noqa: PLC0415

    for table in root.css("table"):
        if len(table.css("table")) == 1 and (text := html_table(table)):
            rows = LexborHTMLParser(f"<pre>{escape(text)}</pre>").css_first("pre")
            table.replace_with(cast(Any, rows))


def _content(tree: LexborHTMLParser) -> LexborNode | None:
    """Return the element with the content: `main`, or the only `article`, or the body without
    navigation.
    """
    for node in tree.css(_ASIDE):
        node.decompose()
    for node in tree.css("header"):
        if node.css_first("h1") is None:
            node.decompose()
    for selector in ("main, [role=main]", "article"):
        found = tree.css(selector)
        if len(found) == 1 and found[0].text().strip():
            return found[0]
    return tree.body


def _block_of(node: LexborNode, root: LexborNode) -> LexborNode:
    """Return the block element that contains a text."""
    parent = node.parent
    while parent is not None and parent.mem_id != root.mem_id:
        if parent.tag in _BLOCKS:
            return parent
        parent = parent.parent
    return root


def _plain(text: str) -> str:
    return " ".join(text.split())


def _tidy(text: str) -> str:
    """Remove white space at the ends of lines, and empty lines, which would end sentences."""
    lines = (line.strip() if line.strip() else "" for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


# DOCX: Word documents are converted to HTML, and cut at their headings (extra `documents`).

DOCX: Final = frozenset({".docx"})
MOST_UNPACKED: Final = 4 * LARGEST  # bytes of the part with the text; images are not read
_BODY: Final = "word/document.xml"
_STYLES: Final = "p[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => p:fresh"
_NOT_DOCX: Final = "not a DOCX file; save it in Word or LibreOffice as .docx"


@reads_whole("DOCX", "mammoth", "selectolax")
def read_docx(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield a document for each section."""
    readable, html = _html(content)
    if not readable:
        yield SourceRow(0, html)
        return
    for row in rows_of(source, html):
        yield SourceRow(0, "the document has no text") if row.found == NO_TEXT else row


def _html(content: bytes) -> tuple[bool, str]:
    """Return whether the file could be read, and the HTML or the problem."""
    import mammoth  # noqa: PLC0415

    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            if sum(part.file_size for part in packed.infolist() if _is_read(part)) > MOST_UNPACKED:
                return False, f"its text is larger than {MOST_UNPACKED:,} bytes; split it"
            packed.getinfo(_BODY)
        result = mammoth.convert_to_html(
            io.BytesIO(content),
            style_map=_STYLES,
            include_embedded_style_map=False,
            convert_image=lambda _: [],
        )
    except (zipfile.BadZipFile, KeyError):
        return False, _NOT_DOCX
    except Exception as error:  # a damaged file may fail anywhere in the parser
        return False, f"the DOCX file is damaged ({type(error).__name__}); save it again"
    return True, str(result.value)


def _is_read(part: zipfile.ZipInfo) -> bool:
    return part.filename.endswith((".xml", ".rels"))


# PDF: each page with text is a document (extra `documents`).

PDF: Final = frozenset({".pdf"})
PDF_MAGIC: Final = b"%PDF-"
MOST_LISTED: Final = 20  # page numbers in one message
OCR: Final = "recognise its text first, for example with: ocrmypdf scan.pdf text.pdf"
# a hyphen at the end of a line
_HYPHEN: Final = re.compile(r"(?<=[^\W\d_])-[^\S\n]*\n[^\S\n]*(?=[a-zß-öø-ÿ])")


@reads_whole("PDF", "pypdf")
def read_pdf(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield a document for each page with text, and a problem for the pages that are images."""
    try:
        yield from _page_rows(source, content)
    except Exception as error:  # a damaged file may fail anywhere in the parser
        reason = str(error).strip() or type(error).__name__
        yield SourceRow(0, f"the PDF is damaged: {reason}; download or export it again")


def _page_rows(source: Input, content: bytes) -> Iterator[SourceRow]:
    from pypdf import PdfReader  # noqa: PLC0415

    # the parser's warnings; errors are reported by page
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        yield SourceRow(0, "the PDF needs a password; save a copy without one")
        return
    title, pages = _pdf_title(source, reader), len(reader.pages)
    read, images = 0, list[int]()
    for number, page in enumerate(reader.pages, 1):
        if source.path != STANDARD_INPUT:
            source.reached(number / pages)
        try:
            text = _text(page)
        except Exception as error:  # the other pages may be readable
            yield SourceRow(number, f"the page cannot be read: {type(error).__name__}: {error}")
            continue
        if text:
            read += 1
            yield SourceRow(number, made(_page_value(source, title, number, text)))
        elif _has_images(page):
            images.append(number)
    if read:
        yield SourceRow(0, AllRead.ALL_READ)
    if images and read:
        yield SourceRow(0, f"pages without text, only images: {_listed(images)}; {OCR}")
    elif not read:
        what = "are images, as of a scan" if images else "have no text"
        yield SourceRow(0, f"the PDF has no text: its pages ({pages:,}) {what}; {OCR}")


def _page_value(source: Input, title: str, number: int, text: str) -> dict[str, Any]:
    value: dict[str, Any] = {"title": title, "text": text, "page": number} | edition(source.label)
    if source.path != STANDARD_INPUT:
        value["id"] = f"{source.label}#page={number}"  # how browsers open a page (RFC 8118)
    return value


def _pdf_title(source: Input, reader: PdfReader) -> str:
    title = str((reader.metadata and reader.metadata.title) or "").strip()
    stem = "" if source.path == STANDARD_INPUT else source.path.stem
    return (_sound(title) or stem)[:LONGEST_TITLE]


def _text(page: PageObject) -> str:
    """Return the text of a page; words divided at the end of a line are joined."""
    return _HYPHEN.sub("", _sound(page.extract_text())).strip()


def _sound(text: str) -> str:
    """Remove characters that do not occur in text, which fonts with a broken encoding yield."""
    return text.replace("\0", "").encode("utf-8", "ignore").decode()


def _has_images(page: PageObject) -> bool:
    try:
        return len(page.images) > 0
    except Exception:  # drawings that cannot be listed do not matter
        return False


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:MOST_LISTED])
    more = len(numbers) - MOST_LISTED
    return f"{shown} and {more:,} more" if more > 0 else shown


# Plain text and Markdown: a file is one document.

TEXT = frozenset({".txt", ".text"})
MARKDOWN = frozenset({".md", ".markdown"})
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+)", re.MULTILINE)


@reads_whole()
def read_text(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield the document: its id is the name of the file, its title Markdown's first heading or the
    stem of the name."""
    try:
        text = content.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        yield SourceRow(0, not_utf8(error, ""))
        return
    if "\0" in text:
        yield SourceRow(0, f"not a text file: NUL at character {text.index(chr(0)) + 1}")
        return
    given, heading = dict[str, str](), None
    if plain_suffix(source.path) in MARKDOWN:
        given, text = front_matter(text)
        heading = _HEADING.search(text)
        text = with_markdown_tables(text)
    stem = "" if source.path == STANDARD_INPUT else source.path.stem
    own = heading[1].strip().rstrip("# \t") if heading else ""
    title = own or given.get("title") or stem
    value: dict[str, Any] = {"title": title[:LONGEST_TITLE], "text": text}
    value |= edition(source.label, given)
    if source.path != STANDARD_INPUT:
        value["id"] = source.label
    yield SourceRow(0, made(value))
