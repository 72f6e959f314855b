"""The formats of a corpus, one module for each. A format is detected from the name of a file if
possible, else from its first bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from service.retrieval.ingest.formats.base import BOM, Reader, plain_suffix
from service.retrieval.ingest.formats.pages import looks_like_html, read_docx, read_html, read_text
from service.retrieval.ingest.formats.pdf import PDF_MAGIC, read_pdf
from service.retrieval.ingest.formats.rows import (
    MAGIC,
    looks_like_dpr,
    read_2wiki,
    read_dpr,
    read_hotpotqa,
    read_jsonl,
    read_musique,
    read_parquet,
)
from service.retrieval.ingest.formats.scans import BEGINNINGS, SUFFIXES, read_image
from service.retrieval.ingest.formats.sheets import read_csv, read_pptx, read_xlsx

FORMATS: Final[Mapping[str, Reader]] = {
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "dpr": read_dpr,
    "text": read_text,
    "html": read_html,
    "pdf": read_pdf,
    "docx": read_docx,
    "csv": read_csv,
    "xlsx": read_xlsx,
    "pptx": read_pptx,
    "image": read_image,
    # Never detected: these files hold questions, and are ingested only on request.
    "hotpotqa": read_hotpotqa,
    "2wiki": read_2wiki,
    "musique": read_musique,
}
KNOWN: Final = (
    ".jsonl, .json, .parquet, .csv, .tsv, .txt, .md, .html, .pdf, .docx, .xlsx, .pptx, .png, "
    ".jpg, .tif, and .gz or .zst of them"
)
_NAMED = {
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".parquet": "parquet",
    **dict.fromkeys((".txt", ".text", ".md", ".markdown"), "text"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".pdf": "pdf",
    ".docx": "docx",
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".xlsx", ".xlsm"), "xlsx"),
    ".pptx": "pptx",
    **dict.fromkeys(SUFFIXES, "image"),
}
# formats whose documents are named after files
BY_NAME: Final = frozenset({"text", "html", "pdf", "docx", "csv", "xlsx", "pptx", "image"})
_UNSAID = frozenset({"", ".json"})  # suffixes that do not determine the format
_ZIP = b"PK\x03\x04"
_PARTS = {b"word/document.xml": "docx", b"xl/workbook.xml": "xlsx", b"ppt/presentation.xml": "pptx"}


def detect(path: Path, head: bytes) -> str | None:
    """Return the name of the format, or None if the file is of an unknown kind."""
    suffix = plain_suffix(path)
    if known := _by_beginning(head):
        return known
    if suffix == ".tsv" and looks_like_dpr(head):
        return "dpr"
    if suffix in _UNSAID:
        return _by_content(head) or ("jsonl" if suffix else None)
    return _NAMED.get(suffix)


def is_named(path: Path, format: str | None) -> bool:
    """Return whether the ids of a file's documents begin with its name."""
    return (format or _NAMED.get(plain_suffix(path))) in BY_NAME


def _by_beginning(head: bytes) -> str | None:
    """Return the format of binary files, which counts more than their names."""
    if head.startswith(MAGIC):
        return "parquet"
    if head.startswith(PDF_MAGIC):
        return "pdf"
    if head.startswith(BEGINNINGS):
        return "image"
    parts = [mark for mark in _PARTS if mark in head] if head.startswith(_ZIP) else []
    return _PARTS[min(parts, key=head.index)] if parts else None


def _by_content(head: bytes) -> str | None:
    start = head.removeprefix(BOM).lstrip()
    if start.startswith((b"[", b"{")):
        return "jsonl"
    if looks_like_html(start):
        return "html"
    return "dpr" if looks_like_dpr(head) else None
