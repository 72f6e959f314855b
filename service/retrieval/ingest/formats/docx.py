"""DOCX: Word documents are converted to HTML, and cut at their headings (extra `documents`)."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Final

from service.retrieval.ingest.formats.base import LARGEST, Input, SourceRow, reads_whole
from service.retrieval.ingest.formats.html import NO_TEXT, rows_of

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
