"""Formats of documents for people: HTML, DOCX, Markdown, and plain text."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from service.retrieval.documents import LONGEST_TITLE
from service.retrieval.ingest.formats.base import (
    ALL_READ,
    BOM,
    STANDARD_INPUT,
    Input,
    SourceRow,
    made,
    not_utf8,
    plain_suffix,
    reads_whole,
)
from service.retrieval.ingest.formats.tables import html_table, with_markdown_tables

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

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
    "legend", "li", "main", "ol", "p", "pre", "section", "summary", "table", "tbody", "td",
    "tfoot", "th", "thead", "tr", "ul",
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
    title, url = _text_of(tree.css_first("head title")), _address(tree)
    sections = list(_sections(tree))
    if not sections:
        yield SourceRow(0, NO_TEXT)
        return
    # The first heading, even one without text below it: DOCX files use it as the title.
    root = _content(tree)
    title = title or _text_of(root.css_first(", ".join(SECTIONS)) if root else None)
    yield from _documents(source, sections, title, {}, url)


def _documents(
    source: Input, sections: Sequence[Section], title: str, given: Mapping[str, str], url: str = ""
) -> Iterator[SourceRow]:
    """Yield each section as a document. The title, which is searched, has its path of headings."""
    title = title or source.stem
    used: set[str] = set()
    for number, section in enumerate(sections, 1):
        anchor = section.anchor
        if not anchor or anchor in used or anchor.isdigit() or len(anchor) > LONGEST_ANCHOR:
            anchor = f"section={number}"
        used.add(anchor)
        path = section.headings
        if path and path[0] in title:  # it only repeats the title
            path = path[1:]
        fields: dict[str, Any] = {"heading": section.headings[-1]} if section.headings else {}
        if url:
            fields["url"] = f"{url}#{section.anchor}" if section.anchor else url
        place = "" if len(sections) == 1 else anchor
        yield part_row(source, number, (title, *path), section.text, place, {**fields, **given})
    yield ALL_READ


def part_row(
    source: Input,
    number: int,
    path: Sequence[str],
    text: str,
    place: str,
    fields: Mapping[str, Any],
) -> SourceRow:
    """Return the document of a part of a file, whose title is the `path` of headings above it, as
    in "Handbook › Leave › Parental leave", and whose id ends with its `place`."""
    title = " › ".join(part for part in path if part)[:LONGEST_TITLE]
    value = {"title": title, "text": text, **edition(source.label, fields), **fields}
    if source.path != STANDARD_INPUT:
        value["id"] = f"{source.label}#{place}" if place else source.label
    return SourceRow(number, made(value))


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


def _text_of(node: LexborNode | None) -> str:
    return _plain(node.text()) if node else ""


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
        path = [heading for heading in path if heading[0] < level]
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
    current, parts = root, list[str]()
    for node in root.traverse(include_text=True):
        tag = node.tag or ""
        if tag == "br":
            parts.append("\n")
        elif tag == "-text":
            block = _block_of(node, root)
            if block.mem_id != current.mem_id:
                if text := _tidy("".join(parts)):
                    yield current, text
                current, parts = block, []
            text = node.text_content or ""
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

_STYLES: Final = "p[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => p:fresh"


@reads_whole("DOCX", "mammoth", "selectolax", part="word/document.xml")
def read_docx(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield a document for each section."""
    import mammoth  # noqa: PLC0415

    html = mammoth.convert_to_html(
        io.BytesIO(content),
        style_map=_STYLES,
        include_embedded_style_map=False,
        convert_image=lambda _: [],
    ).value
    for row in rows_of(source, html):
        yield SourceRow(0, "the document has no text") if row.found == NO_TEXT else row


# Plain text, which is one document, and Markdown.

MARKDOWN = frozenset({".md", ".markdown"})
_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(.+)")
_UNDERLINE: Final = re.compile(r" {0,3}(=+|-+)[ \t]*")
_FENCE: Final = re.compile(r" {0,3}(```|~~~)")
MOST_OTHERS: Final = 0.4  # of the bytes of a text in a Western language
_ASCII: Final = bytes(range(128))
# as in a text that is UTF-8 but for faults
_MULTIBYTE: Final = re.compile(rb"[\xc3-\xf4][\x80-\xbf]")
_NO_ANCHOR: Final = re.compile(r"[^\w\- ]")


@reads_whole()
def read_text(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield a text as one document, whose id is the name of the file and whose title is the stem of
    it; Markdown is cut at its headings. It is in UTF-8, in UTF-16 with its mark, or, if few bytes
    are no ASCII, in Windows-1252."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        others = len(content.translate(None, _ASCII))
        if not marked and (_MULTIBYTE.search(content) or others > MOST_OTHERS * len(content)):
            yield SourceRow(0, f"{not_utf8(error, '')}; save it as UTF-8")
            return
    text = decoded(content)
    if "\0" in text:
        yield SourceRow(0, f"not a text file: NUL at character {text.index(chr(0)) + 1}")
        return
    given, title, sections = dict[str, str](), "", list[Section]()
    if plain_suffix(source.path) in MARKDOWN:
        given, text = front_matter(text)
        sections = list(_markdown_sections(with_markdown_tables(text)))
        top = {section.headings[0] for section in sections if section.headings}
        title = top.pop() if len(top) == 1 else given.get("title", "")
    sections = [section for section in sections if section.text.strip()] or [Section((), "", text)]
    fields = {name: given[name][:LONGEST] for name in FIELDS if given.get(name)}
    yield from _documents(source, sections, title, fields)


def _markdown_sections(text: str) -> Iterator[Section]:
    """Yield the parts between headings, also those without a text. Lines in code are none."""
    path, lines, anchor, fence = list[tuple[int, str]](), list[str](), "", ""
    for line in text.split("\n"):
        if mark := _FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        heading = None if fence else _HEADING.fullmatch(line)
        under = None if fence or heading else _UNDERLINE.fullmatch(line)
        if under and lines and lines[-1].strip():
            level, name = (1 if under[1][0] == "=" else 2), lines.pop()
        elif heading and len(heading[1]) <= len(SECTIONS):
            level, name = len(heading[1]), heading[2]
        else:
            lines.append(line)
            continue
        yield Section(tuple(heading for _, heading in path), anchor, "\n".join(lines))
        name = name.strip().rstrip("# \t")
        path = [heading for heading in path if heading[0] < level] + [(level, name)]
        lines, anchor = [], _NO_ANCHOR.sub("", name.lower()).replace(" ", "-")
    yield Section(tuple(heading for _, heading in path), anchor, "\n".join(lines))


# Which edition of a document a file is: `date`, `version` and `valid_from`, from what its name
# says, its metadata, or the lines between `---` at the beginning of Markdown.

FIELDS: Final = ("date", "version", "valid_from")
LONGEST: Final = 100  # characters of a value
_DATE: Final = re.compile(
    r"(?<!\d)((?:19|20)\d\d)(?:[-_.]?(0[1-9]|1[0-2])(?:[-_.]?(0[1-9]|[12]\d|3[01]))?)?(?!\d)"
)
_VERSION: Final = re.compile(r"(?:^|[-_ .(])v(?:er(?:sion)?)?[-_ .]?(\d+(?:\.\d+)*)(?![\w])", re.I)
_FRONT: Final = re.compile(r"\s*---[^\S\n]*\n((?:[\w-]++:[^\n]*\n)++)---[^\S\n]*(?:\n|$)")


def edition(label: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Return what the name of the document `label` says, besides the fields that are `given`."""
    found, stem = dict[str, str](), Path(label).stem
    if not {"date", "valid_from"} & given.keys() and (date := _DATE.search(stem)):
        found["date"] = "-".join(part for part in date.groups() if part)
    if "version" not in given and (version := _VERSION.search(stem)):
        found["version"] = version[1]
    return found


def front_matter(text: str) -> tuple[dict[str, str], str]:
    """Return the fields between `---` before a text, and the text without them."""
    if not (block := _FRONT.match(text)):
        return {}, text
    lines = (line.partition(":") for line in block[1].splitlines())
    return {name: value.strip().strip("\"'") for name, _, value in lines}, text[block.end() :]
