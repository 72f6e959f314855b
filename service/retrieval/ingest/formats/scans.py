"""Text of images: photographs and scans, and the pages of PDF that are images (extra `ocr`)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from service.retrieval.ingest.formats.base import ALL_READ, Input, SourceRow, reads_whole
from service.retrieval.ingest.formats.pages import part_row
from service.retrieval.ingest.formats.tables import CELL, SMALLEST, gapped_text

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
BEGINNINGS: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*")
PACKAGES: Final = ("rapidocr", "onnxruntime", "PIL")
LONGEST_SIDE: Final = 2_000  # pixels of a page, as the models see it
_COLUMNS: Final = 1.8  # widths of a character between two columns


class Word(NamedTuple):
    """A recognised word, where it is in pixels, and the line of text in which it was detected."""

    text: str
    left: float
    right: float
    middle: float
    height: float
    line: int


@reads_whole("PNG, JPEG or TIFF", *PACKAGES, extra="ocr")
def read_image(source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield the text of an image as a document, of a TIFF each page."""
    from PIL import Image, ImageOps, ImageSequence  # noqa: PLC0415

    found = 0
    with Image.open(io.BytesIO(content)) as opened:
        pages = getattr(opened, "n_frames", 1)
        for number, frame in enumerate(ImageSequence.Iterator(opened), 1):
            if text := recognised(ImageOps.exif_transpose(frame)):
                found += 1
                place, fields = (f"page={number}", {"page": number}) if pages > 1 else ("", {})
                yield part_row(source, number, (source.stem,), text, place, fields)
    yield ALL_READ if found else SourceRow(0, "no text was recognised in the image")


def recognised(image: Image) -> str:
    """Return the text in an image, line by line, with its tables as rows."""
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    found = _engine()(image.convert("RGB"), return_word_box=True)
    words = list(_words(found.word_results))
    return "\n".join(gapped_text("\n".join(_lines(column)))[0] for column in _columns(words))


@lru_cache(1)
def _engine() -> Any:
    from rapidocr import RapidOCR  # noqa: PLC0415

    return RapidOCR(params={"Global.log_level": "critical"})


def _words(lines: Sequence[Sequence[Any]]) -> Iterator[Word]:
    for number, line in enumerate(lines):
        for text, _, corners in (word for word in line if isinstance(word, tuple)):
            across, down = zip(*corners, strict=True)
            top, bottom = min(down), max(down)
            yield Word(
                text, min(across), max(across), (top + bottom) / 2, bottom - top, number
            )  # fmt: skip


def _columns(words: Sequence[Word]) -> list[list[Word]]:
    """Return the words in the order of columns of prose, if the page has two, which lines across
    the page may interrupt."""
    lines = dict[int, list[Word]]()
    for word in words:
        lines.setdefault(word.line, []).append(word)
    places = [
        (min(word.left for word in line), max(word.right for word in line), number)
        for number, line in lines.items()
    ]

    def sides(gutter: float) -> list[list[int]]:
        left = [number for _, right, number in places if right <= gutter]
        return [left, [number for start, _, number in places if start >= gutter]]

    def is_prose(column: Sequence[int]) -> bool:
        size = sum(len(word.text) + 1 for number in column for word in lines[number])
        return len(column) >= SMALLEST and size >= CELL * len(column)

    found = [columns for start, *_ in places if all(map(is_prose, columns := sides(start)))]
    best = max(found, key=lambda columns: sum(map(len, columns)), default=None)
    if best is None or sum(map(len, best)) < len(lines) / 2:
        return [list(words)]
    blocks: list[list[Word]] = [[], []]
    for number in sorted(lines, key=lambda number: lines[number][0].middle):
        side = next((at for at, column in enumerate(best) if number in column), None)
        if side is None:
            blocks += [lines[number], [], []]
        else:
            blocks[side - 2] += lines[number]
    return [block for block in blocks if block]


def _lines(words: list[Word]) -> Iterator[str]:
    """Yield the lines of words, from top to bottom. Two spaces stand between columns."""
    wide = median(word.right - word.left for word in words) if words else 0.0
    rows = list[list[Word]]()
    for word in sorted(words, key=lambda word: word.middle):
        if rows and word.middle - rows[-1][0].middle < 0.5 * rows[-1][0].height:
            rows[-1].append(word)
        else:
            rows.append([word])
    letter = wide / median(len(word.text) for word in words) if words else 0.0
    for row in rows:
        row.sort(key=lambda word: word.left)
        text = row[0].text
        for before, word in pairwise(row):
            apart = before.line != word.line or word.left - before.right > _COLUMNS * letter
            text += ("  " if apart else " ") + word.text
        yield text
