"""Small PDF and DOCX files in the form that their usual writers produce, and scans."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

_ESCAPED, _BACKSLASHED = re.compile(r"[()\\]"), r"\\\g<0>"
IMAGE = None  # instead of a page's text: the page is an image


def pdf(pages: Sequence[str | None], title: str = "", *, drawn: bool = False) -> bytes:
    """Return a PDF with these page texts in Helvetica. Line breaks are kept. With `drawn`, the
    pages are given by their operators."""
    count, objects = len(pages), list[bytes]()
    kids = " ".join(f"{5 + 2 * n} 0 R" for n in range(count))
    objects.append(b"<< /Type /Catalog /Pages 2 0 R >>")
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {count} >>".encode())
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    pixel = b"<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray "
    objects.append(pixel + b"/BitsPerComponent 8 /Length 1 >>\nstream\n\x80\nendstream")
    for n, text in enumerate(pages):
        resources = "/XObject << /I 4 0 R >>" if text is IMAGE else "/Font << /F 3 0 R >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {6 + 2 * n} 0 R "
            f"/Resources << {resources} >> >>".encode()
        )
        image = "q 612 0 0 792 0 0 cm /I Do Q"
        content = (image if text is IMAGE else text if drawn else _written(text)).encode("latin-1")
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content))
    objects.append(f"<< /Title ({title}) >>".encode("latin-1"))
    return _assembled(objects)


def _written(text: str) -> str:
    lines = [f"({_ESCAPED.sub(_BACKSLASHED, line)}) Tj T*" for line in text.split("\n")]
    return "BT /F 12 Tf 14 TL 72 720 Td " + " ".join(lines) + " ET"


def _assembled(objects: Sequence[bytes]) -> bytes:
    out, places = bytearray(b"%PDF-1.7\n"), list[int]()
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    begin = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer << /Size %d /Root 1 0 R /Info %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        len(objects),
        begin,
    )
    return bytes(out)


_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml" ContentType="application/'
    'vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="r1" Target="word/document.xml" Type="http://schemas.openxmlformats.org/'
    'officeDocument/2006/relationships/officeDocument"/></Relationships>'
)


def docx(paragraphs: Sequence[tuple[str, str | Sequence[Sequence[str]]]]) -> bytes:
    """Return a DOCX of paragraphs, each given by a style such as `Heading 1` and a text, or by the
    rows of a table."""
    names = sorted({style for style, _ in paragraphs if style})
    styles = "".join(
        f'<w:style w:type="paragraph" w:styleId="{name.replace(" ", "")}">'
        f'<w:name w:val="{name}"/></w:style>'
        for name in names
    )
    body = "".join(
        _paragraph(style, what) if isinstance(what, str) else _table(what)
        for style, what in paragraphs
    )
    parts = {
        "[Content_Types].xml": _TYPES,
        "_rels/.rels": _RELATIONS,
        "word/document.xml": f'<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>',
        "word/styles.xml": f'<w:styles xmlns:w="{_WORD}">{styles}</w:styles>',
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return packed.getvalue()


def _paragraph(style: str, text: str) -> str:
    return (
        f'<w:p><w:pPr><w:pStyle w:val="{style.replace(" ", "")}"/></w:pPr>'
        f"<w:r><w:t>{escape(text)}</w:t></w:r></w:p>"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    cells = ("".join(f"<w:tc>{_paragraph('', cell)}</w:tc>" for cell in row) for row in rows)
    return "<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in cells) + "</w:tbl>"


SCANNED = ["Boiler HK-7", "The guarantee lasts 36 months from delivery.", "Spare parts: two years."]
SCANNED_TABLE = [
    ["Model", "Price", "Delivery"], ["HK-7", "1,240", "2 weeks"], ["HK-9", "3,150", "4 weeks"]
]  # fmt: skip


def scan(path: Path, pages: int = 1) -> Path:
    """Save pages of text as images, in the format that the name says."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(28)
    images = []
    for _ in range(pages):
        image = Image.new("RGB", (1240, 900), "white")
        draw = ImageDraw.Draw(image)
        for at, line in enumerate(SCANNED):
            draw.text((120, 100 + 60 * at), line, "black", font)
        for at, row in enumerate(SCANNED_TABLE):
            for column, cell in enumerate(row):
                draw.text((120 + 300 * column, 400 + 60 * at), cell, "black", font)
        images.append(image)
    images[0].save(path, save_all=pages > 1, append_images=images[1:], resolution=150)
    return path
