"""PDF: each page with text is a document (extra `documents`). Headers and footers that repeat are
left out, and tables become lines of rows."""

from __future__ import annotations

import io
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from service.core.extras import missing_packages
from service.retrieval.ingest.formats.base import (
    ALL_READ,
    STANDARD_INPUT,
    Input,
    SourceRow,
    reads_whole,
)
from service.retrieval.ingest.formats.pages import part_row
from service.retrieval.ingest.formats.scans import LONGEST_SIDE, PACKAGES, recognised
from service.retrieval.ingest.formats.tables import (
    SMALLEST,
    gapped_text,
    names_columns,
    one_header,
    table_text,
)

if TYPE_CHECKING:
    from pdfplumber.page import Page
    from pypdf import PageObject, PdfReader

WINDOW: Final = 10  # pages that are compared for what repeats
EDGE: Final = 2  # lines at the top and at the bottom of a page that may be headers and footers
PDF_MAGIC: Final = b"%PDF-"
MOST_LISTED: Final = 20  # page numbers in one message
_NUMBERS: Final = re.compile(r"\d+")
_ROW: Final = re.compile(r"[^:;]+[:;] .*\.")  # of a table, as `table_text` writes it
_FORMS: Final = re.compile("[\ufb00-\ufdff\ufe70-\ufefc]+")
# a hyphen at the end of a line
_HYPHEN: Final = re.compile(r"(?<=[^\W\d_])-[^\S\n]*\n[^\S\n]*(?=[a-zß-öø-ÿ])")


@reads_whole("PDF", "pypdf", "pdfplumber")
def read_pdf(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield a document for each page with text. The text of pages that are images is recognised
    where the extra `ocr` is installed; without it, they are named."""
    from pypdf import PdfReader  # noqa: PLC0415

    # the parser's warnings; errors are reported by page
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    if PDF_MAGIC not in content[:1_024]:
        yield SourceRow(0, "not a PDF file, whatever its name says; save or download it again")
        return
    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        yield SourceRow(0, "the PDF needs a password; save a copy without one")
        return
    given = str((reader.metadata and reader.metadata.title) or "").strip()
    title = _sound(given) or source.stem
    lacking = missing_packages("text in images", PACKAGES, "ocr")
    read, images = 0, list[int]()
    for number, text, problem in _texts(source, reader, content):
        scanned = not text and not problem and _has_images(reader.pages[number - 1])
        if scanned and not lacking:
            text = _scanned(content, number)  # noqa: PLW2901
        if problem:
            yield SourceRow(number, problem)
        elif text:
            read += 1
            place = f"page={number}"  # how browsers open a page (RFC 8118)
            yield part_row(source, number, (title,), text, place, {"page": number})
        elif scanned:
            images.append(number)
    if read:
        yield ALL_READ
    if unread := _unread(len(reader.pages), read, images, lacking):
        yield SourceRow(0, unread)


def _unread(pages: int, read: int, images: Sequence[int], lacking: str | None) -> str | None:
    """Say what was not read of a PDF, and what to do, if anything was not."""
    if read:
        found = images and lacking
        return f"pages without text, only images: {_listed(images)}; {lacking}" if found else None
    what = "are images, as of a scan" if images else "have no text"
    advice = lacking or "no text was recognised in them" if images else "is it the right file?"
    return f"the PDF has no text: its pages ({pages:,}) {what}; {advice}"


def _texts(source: Input, reader: PdfReader, content: bytes) -> Iterator[tuple[int, str, str]]:
    """Yield the number of each page, its text without what repeats, and its problem."""
    tables, repeated, pages = PageTables(content), set[str](), len(reader.pages)
    for start in range(0, pages, WINDOW):
        texts, problems = dict[int, str](), dict[int, str]()
        for number, page in enumerate(reader.pages[start : start + WINDOW], start + 1):
            if source.path != STANDARD_INPUT:
                source.reached(number / pages)
            try:
                texts[number] = _text(page, tables)
            except Exception as error:  # the other pages may be readable
                what = f"{type(error).__name__}: {error}"
                texts[number], problems[number] = "", f"the page cannot be read: {what}"
        repeated |= _repeated([text for text in texts.values() if text])
        for number, text in texts.items():
            yield number, _without(text, repeated), problems.get(number, "")


def _text(page: PageObject, tables: PageTables) -> str:
    """Return the text of a page; words divided at the end of a line are joined."""
    text = page.extract_text()
    return _HYPHEN.sub("", _sound(tables.text_of(page, text) or text)).strip()


def _repeated(texts: Sequence[str]) -> set[str]:
    """Return the lines, without their numbers, that begin or end most of these pages. Rows of
    tables, which differ by their numbers only, are none."""
    edges = ({_bare(line) for line in _edges(text) if not _ROW.fullmatch(line)} for text in texts)
    seen = Counter(line for lines in edges for line in lines)
    return {line for line, count in seen.items() if count >= max(3, 0.6 * len(texts))}


def _without(text: str, repeated: set[str]) -> str:
    """Return the text of a page without headers and footers that others have as well."""
    lines = text.split("\n")
    kept = [
        line for at, line in enumerate(lines)
        if EDGE <= at < len(lines) - EDGE or _ROW.fullmatch(line) or _bare(line) not in repeated
    ]  # fmt: skip
    return "\n".join(kept).strip()


def _edges(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:EDGE] + lines[EDGE:][-EDGE:]


def _bare(line: str) -> str:
    """Return a line with the same text for each page number."""
    return _NUMBERS.sub("0", " ".join(line.split()))


def _sound(text: str) -> str:
    """Remove characters that do not occur in text, which fonts with a broken encoding yield, and
    write ligatures and other forms of letters as the letters."""
    plain = text.replace("\0", "").encode("utf-8", "ignore").decode()
    return _FORMS.sub(lambda found: unicodedata.normalize("NFKC", found[0]), plain)


def _has_images(page: PageObject) -> bool:
    try:
        return len(page.images) > 0
    except Exception:  # drawings that cannot be listed do not matter
        return False


def _scanned(content: bytes, number: int) -> str:
    import pypdfium2  # noqa: PLC0415

    with pypdfium2.PdfDocument(content) as opened:
        page = opened[number - 1]
        image = page.render(scale=LONGEST_SIDE / max(*page.get_size(), 1)).to_pil()
    return recognised(image)


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:MOST_LISTED])
    more = len(numbers) - MOST_LISTED
    return f"{shown} and {more:,} more" if more > 0 else shown


# Tables. pdfplumber finds cells between lines. It takes ten times as long as the text, and so reads
# only pages with drawn lines. Columns without lines are found by the gaps of the text.

_RULED: Final = 6  # operators that draw lines or rectangles, of a table of four cells
_DRAWN: Final = re.compile(rb"(?<=[\d.\s])(?:re|l)\s")
EDGE_PT: Final = 3.0  # points by which the same columns may differ
FEWEST_VALUES: Final = 0.2  # of the lines of a page that may have a table without lines
_DIGIT: Final = re.compile(r"\d")


class PageTables:
    """Finds the tables of a document, page after page. A table may go on from one to the next."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._opened: Any = None
        self._header: Sequence[str] = ()
        self._place = set[int]()  # of its columns
        self._to_left = False

    def text_of(self, page: PageObject, plain: str) -> str | None:
        """Return the text of a page with its tables as rows; None if it has none."""
        drawn, number = page.get_contents(), page.page_number or 0
        ruled = drawn is not None and len(_DRAWN.findall(drawn.get_data())) >= _RULED
        leftward = len(_LEFTWARD.findall(plain))
        self._to_left = leftward > sum(map(str.isalpha, plain)) / 2
        if ruled and (found := self._ruled(number)):
            return found
        if leftward:
            laid_out = self._page(number).extract_text(layout=True)
            return gapped_text(in_logical_order(laid_out, to_left=self._to_left))[0]
        lines = plain.split("\n")
        valued = sum(bool(_DIGIT.search(line)) for line in lines)
        if valued < max(SMALLEST, FEWEST_VALUES * len(lines)):
            return None
        text, tables = gapped_text(page.extract_text(extraction_mode="layout"))
        return text if tables else None

    def _page(self, number: int) -> Page:
        import pdfplumber  # noqa: PLC0415

        if self._opened is None:
            self._opened = pdfplumber.open(io.BytesIO(self._content))
        page: Page = self._opened.pages[number]
        return page

    def _ruled(self, number: int) -> str | None:
        page = self._page(number)
        try:
            blocks, top, found = list[str](), 0.0, False
            for table in sorted(page.find_tables(), key=lambda block: block.bbox[1]):
                rows = [list(row) for row in table.extract()]
                if len(rows) < 2 or len(rows[0]) < 2 or table.bbox[1] < top:
                    continue  # a frame, or a table in another
                blocks.append(self._between(page, top, table.bbox[1]))
                place = {round(left / EDGE_PT) for left, *_ in table.cells}
                begins = not found and not blocks[-1].strip()
                blocks.append(self._written(rows, place, begins=begins, first=not found))
                top, found = table.bbox[3], True
            blocks.append(self._between(page, top, page.height))
            return "\n".join(filter(None, blocks)) if found else None
        finally:
            page.close()

    def _between(self, page: Page, top: float, bottom: float) -> str:
        if bottom - top < 1:
            return ""
        left, _, right, _ = page.bbox
        box = (left, max(top, page.bbox[1]), right, min(bottom, page.bbox[3]))
        return in_logical_order(page.crop(box).extract_text(), to_left=self._to_left)

    def _written(
        self, rows: list[list[str | None]], place: set[int], *, begins: bool, first: bool
    ) -> str:
        """Return rows as text. A table whose first row has numbers continues the one before it. So
        does the `first` of a page, if its columns are at the same `place`, and it `begins` the
        page, or its first row has digits as no header has."""
        for at, row in enumerate(rows):  # cells that others were merged with
            for column, cell in enumerate(row):
                if cell is None and (column or at):
                    row[column] = rows[at - 1][column] if at else row[column - 1]
        order = -1 if self._to_left else 1
        cells = [
            [in_logical_order(cell or "", to_left=self._to_left) for cell in row[::order]]
            for row in rows
        ]
        cells = (
            one_header(cells) if "" not in cells[0] and len({*cells[0]}) < len(cells[0]) else cells
        )
        values = _DIGIT.search("".join(cells[0])) and not _DIGIT.search("".join(self._header))
        same = first and place == self._place and cells[0] != list(self._header)
        goes_on = not names_columns(cells[0]) or (same and (begins or values))
        if len(self._header) == len(cells[0]) and goes_on:
            cells.insert(0, list(self._header))
        elif names_columns(cells[0]):
            self._header, self._place = cells[0], place
        return table_text(cells, headed=None if len(cells[0]) == 2 else names_columns(cells[0]))


# Text from right to left. pdfplumber gives each line as it is seen, from left to right, and letters
# in the forms that they have beside others.

_SCRIPTS: Final = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"  # Hebrew and Arabic
_LEFTWARD: Final = re.compile(f"[{_SCRIPTS}]")
_PHRASE: Final = re.compile(rf"[{_SCRIPTS}](?:(?:[^\w\n]|[{_SCRIPTS}\d])*[{_SCRIPTS}])?")
# What runs from left to right in such a line: other words, up to a gap, and numbers.
_RIGHTWARD: Final = re.compile(
    rf"(\d(?:[\d.,:/]*\d)?[%٪]?|(?![{_SCRIPTS}])[^\W\d_](?:(?:(?!\s\s)[^{_SCRIPTS}\n])*"
    rf"(?![{_SCRIPTS}])[^\W_])?)"
)
_MIRRORED: Final = str.maketrans("()[]{}<>«»", ")(][}{><»«")


def in_logical_order(text: str, *, to_left: bool) -> str:
    """Return text whose lines are as seen in the order in which they are read. On a page that
    runs `to_left`, whole lines do; on others, words do."""
    if not to_left:
        return _PHRASE.sub(lambda found: in_logical_order(found[0], to_left=True), text)
    lines = (
        "".join(
            piece if at % 2 else piece[::-1].translate(_MIRRORED)
            for at, piece in reversed([*enumerate(_RIGHTWARD.split(line))])
        )
        for line in text.split("\n")
    )
    return "\n".join(lines)
