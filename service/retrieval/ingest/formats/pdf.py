"""PDF: each page with text is a document (extra `documents`)."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from service.retrieval.ingest.documents import LONGEST_TITLE
from service.retrieval.ingest.formats.base import (
    STANDARD_INPUT,
    AllRead,
    Input,
    SourceRow,
    made,
    reads_whole,
)

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader

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
        yield from _rows(source, content)
    except Exception as error:  # a damaged file may fail anywhere in the parser
        reason = str(error).strip() or type(error).__name__
        yield SourceRow(0, f"the PDF is damaged: {reason}; download or export it again")


def _rows(source: Input, content: bytes) -> Iterator[SourceRow]:
    from pypdf import PdfReader  # noqa: PLC0415

    # the parser's warnings; errors are reported by page
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        yield SourceRow(0, "the PDF needs a password; save a copy without one")
        return
    title, pages = _title(source, reader), len(reader.pages)
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
            yield SourceRow(number, made(_value(source, title, number, text)))
        elif _has_images(page):
            images.append(number)
    if read:
        yield SourceRow(0, AllRead.ALL_READ)
    if images and read:
        yield SourceRow(0, f"pages without text, only images: {_listed(images)}; {OCR}")
    elif not read:
        what = "are images, as of a scan" if images else "have no text"
        yield SourceRow(0, f"the PDF has no text: its pages ({pages:,}) {what}; {OCR}")


def _value(source: Input, title: str, number: int, text: str) -> dict[str, Any]:
    value: dict[str, Any] = {"title": title, "text": text, "page": number}
    if source.path != STANDARD_INPUT:
        value["id"] = f"{source.label}#page={number}"  # how browsers open a page (RFC 8118)
    return value


def _title(source: Input, reader: PdfReader) -> str:
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
