"""Files into documents: JSONL, plain text and Markdown, line by line, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import orjson

from service.retrieval.documents import LONGEST_TITLE, BadDocument, Document, parse_document

LONGEST_LINE = 1_000_000  # bytes of a JSONL line (design: 1 MB)
LARGEST_FILE = 50_000_000  # bytes of a text or Markdown file, which is one document
_SKIP = 65_536  # bytes read at once of a line that is too long
_BOM = b"\xef\xbb\xbf"

JSONL = frozenset({".jsonl", ".ndjson", ".json"})
TEXT = frozenset({".txt", ".text"})
MARKDOWN = frozenset({".md", ".markdown"})

_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something did not go in: file, line (from 1; 0 is the whole file), what is wrong."""

    file: str
    line: int
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}: {self.problem}"
            if self.line
            else f"{self.file}: {self.problem}"
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One document or one problem, where it stood, and the bytes read up to its end, all files."""

    found: Document | Problem
    file: str
    line: int
    position: int


def total_bytes(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files if path.is_file())


def read_files(files: Sequence[Path]) -> Iterator[Entry]:
    """Every document and every problem of the files, in order. Blocking."""
    names: set[str] = set()
    before = 0
    for path in files:
        kind = path.suffix.lower()
        try:
            if kind in JSONL:
                yield from _read_jsonl(path, before)
            elif kind in TEXT | MARKDOWN:
                found: Document | Problem
                if path.name in names:  # the name is the id, so the second would replace the first
                    found = Problem(str(path), 0, "another file of this run has the same name")
                else:
                    found = _read_text(path, markdown=kind in MARKDOWN)
                names.add(path.name)
                yield Entry(found, str(path), 0, before + path.stat().st_size)
            else:
                what = f"unknown kind of file {path.suffix!r}; known: .jsonl, .txt, .md"
                yield Entry(Problem(str(path), 0, what), str(path), 0, before)
        except OSError as error:
            why = error.strerror or type(error).__name__
            yield Entry(Problem(str(path), 0, f"cannot be read: {why}"), str(path), 0, before)
        before += total_bytes([path])


def _read_jsonl(path: Path, before: int) -> Iterator[Entry]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 2):
            number += 1
            too_long = len(line.rstrip(b"\r\n")) > LONGEST_LINE
            if too_long and not line.endswith(b"\n"):
                _skip_line(file)
            position = before + file.tell()
            if number == 1:
                line = line.removeprefix(_BOM)
            if too_long:
                what = f"the line is longer than {LONGEST_LINE:,} bytes"
                yield Entry(Problem(str(path), number, what), str(path), number, position)
            elif line.strip():
                yield Entry(_parse_line(line, str(path), number), str(path), number, position)


def _skip_line(file: BinaryIO) -> None:
    while (rest := file.readline(_SKIP)) and not rest.endswith(b"\n"):
        pass


def _parse_line(line: bytes, file: str, number: int) -> Document | Problem:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return Problem(file, number, f"not UTF-8: byte {error.start + 1} of the line")
    try:
        return parse_document(orjson.loads(text))
    except orjson.JSONDecodeError as error:
        return Problem(file, number, f"not JSON: {error.msg} at character {error.colno}")
    except BadDocument as error:
        return Problem(file, number, str(error))


def _read_text(path: Path, *, markdown: bool) -> Document | Problem:
    if path.stat().st_size > LARGEST_FILE:
        return Problem(str(path), 0, f"the file is larger than {LARGEST_FILE:,} bytes; split it")
    try:
        text = path.read_bytes().removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        return Problem(str(path), 0, f"not UTF-8: byte {error.start + 1}")
    heading = _HEADING.search(text) if markdown else None
    title = heading[1].strip()[:LONGEST_TITLE] if heading else path.stem
    try:
        return parse_document({"id": path.name, "title": title, "text": text})
    except BadDocument as error:
        return Problem(str(path), 0, str(error))
