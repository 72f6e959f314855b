"""Reads files, folders and standard input as documents, row by row, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from service.retrieval.base import ACCESS
from service.retrieval.documents import Document
from service.retrieval.ingest.formats import FORMATS, KNOWN, detect, is_named
from service.retrieval.ingest.formats.base import (
    DAMAGED,
    STANDARD_INPUT,
    Input,
    SourceRow,
    open_input,
    plain_suffix,
)

# What to do with a file of a type that is not read.
INSTEAD = {
    **dict.fromkeys((".doc", ".rtf", ".odt"), "save it as .docx"),
    **dict.fromkeys((".xls", ".ods"), "save it as .xlsx"),
    **dict.fromkeys((".ppt", ".odp"), "save it as .pptx"),
    **dict.fromkeys((".eml", ".msg"), "save it as .txt, .html or .pdf"),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), "unpack it, and add its files"),
}
BROKEN = "the compressed data is truncated or damaged after this line"
BEIR_CORPUS = tuple(f"corpus.jsonl{end}" for end in ("", ".gz", ".zst"))


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Why something is not ingested: the name of the file, the line or row (from 1; 0 is the whole
    file), and the problem."""

    name: str
    line: int
    problem: str

    def __str__(self) -> str:
        place = f"{self.name}:{self.line}" if self.line else self.name
        return f"{place}: {self.problem}"


@dataclass(frozen=True, slots=True)
class WholeFile:
    """The end of a file that was cut into pages or sections and read without an error: its name,
    and the ids of all its documents.
    """

    name: str
    document_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """One document or problem, or the end of a file that is cut; its place, and the bytes of all
    files read up to its end.

    For a compressed file, these are compressed bytes.
    """

    found: Document | SourceProblem | WholeFile
    file: str
    line: int
    position: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read, or `-`. `label` is the document id of a text file: its name, or its path
    below the folder that was given."""

    path: Path
    label: str

    @property
    def name(self) -> str:
        return "standard input" if self.path == STANDARD_INPUT else str(self.path)

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0


# A file or folder, a file of a folder that is known already, or one that is there no more.
Source = Path | SourceFile | WholeFile


def total_bytes(files: Sequence[Source]) -> int | None:
    """Return the size of all files; None if standard input is among them."""
    if STANDARD_INPUT in files:
        return None
    return sum(source.size for source in expand(files) if isinstance(source, SourceFile))


def read_files(
    files: Sequence[Source], format: str | None = None, access: Sequence[str] = ()
) -> Iterator[SourceEntry]:
    """Yield every document and every problem, in order. Blocking. Without `format`, the format is
    detected for each file. Documents that do not say who may see them get this `access`."""
    before = 0
    for source in expand(files, format):
        if not isinstance(source, SourceFile):
            yield SourceEntry(source, source.name, 0, before)
            continue
        for entry in read_source(source, format):
            found = entry.found
            if access and isinstance(found, Document) and ACCESS not in found.metadata:
                found = replace(found, metadata={**found.metadata, ACCESS: list(access)})
            yield SourceEntry(found, entry.file, entry.line, before + entry.position)
        before += source.size


def expand(
    files: Sequence[Source], format: str | None = None
) -> Iterator[SourceFile | SourceProblem | WholeFile]:
    """Yield the files of folders, ordered by name; of a BEIR folder only its corpus."""
    labels: set[str] = set()
    for path in files:
        if not isinstance(path, Path):
            yield path
            continue
        if path != STANDARD_INPUT and (leads := _leads_out(path, path.absolute().parent)):
            yield leads
            continue
        found = list(_below(path)) if path.is_dir() else [SourceFile(path, path.name)]
        if not found:
            yield SourceProblem(
                str(path), 0, f"the folder contains no file; known formats: {KNOWN}"
            )
        for source in found:
            if path.is_dir() and (leads := _leads_out(source.path, path)):
                yield leads
                continue
            # The label is the id: the second would replace the first.
            if is_named(source.path, format) and source.label in labels:
                yield SourceProblem(source.name, 0, "another file of this run has the same name")
                continue
            labels.add(source.label)
            yield source


def read_source(source: SourceFile, format: str | None = None) -> Iterator[SourceEntry]:
    """Yield every document and every problem of one file; positions count from its beginning.

    Only ids of pages and sections are remembered: a corpus may have millions of lines.
    """
    ids, faults, last = set[str](), 0, 0
    found: Document | SourceProblem | WholeFile
    try:
        with open_input(source.path, source.label) as opened:
            for row in _rows(opened, format):
                last = row.number
                if isinstance(row.found, str):
                    faults += 1
                    found = SourceProblem(source.name, last, row.found)
                elif isinstance(row.found, Document):
                    found = row.found
                    if found.id == source.label or found.id.startswith(f"{source.label}#"):
                        ids.add(found.id)
                elif faults or source.path == STANDARD_INPUT:
                    continue
                else:
                    found = WholeFile(source.label, frozenset(ids))
                yield SourceEntry(found, source.name, last, opened.position())
            return
    except DAMAGED as error:
        problem = f"{BROKEN}; download the file again ({error})"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or type(error).__name__}"
    found = SourceProblem(source.name, last, problem)
    yield SourceEntry(found, source.name, last, source.size)


def _rows(opened: Input, format: str | None) -> Iterator[SourceRow]:
    kind = format or detect(opened.path, opened.head)
    if not opened.head:
        yield SourceRow(0, "the file is empty")
    elif kind is None and opened.path == STANDARD_INPUT:
        yield SourceRow(0, "the format cannot be detected; set it with --format")
    elif kind is None:
        suffix = plain_suffix(opened.path)
        advice = INSTEAD.get(suffix, f"known: {KNOWN}; `ingest --format` reads others")
        yield SourceRow(0, f"unknown file type {suffix!r}; {advice}")
    else:
        empty = True
        for row in FORMATS[kind](opened):
            empty = False
            yield row
        if empty:
            yield SourceRow(0, f"the file contains no rows, read as {kind}")


def _leads_out(path: Path, folder: Path) -> SourceProblem | None:
    """Return a problem if a path is a link to something outside of the folder."""
    try:
        inside = not path.is_symlink() or path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links that lead to each other
        inside = False
    if inside:
        return None
    what = "a link to something outside of its folder is not followed; name the file itself"
    return SourceProblem(str(path), 0, what)


def _below(folder: Path) -> Iterator[SourceFile]:
    """Files below a folder without hidden ones; links to folders are not followed."""
    for name in BEIR_CORPUS:
        if (folder / name).is_file():
            yield SourceFile(folder / name, name)
            return
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                path = Path(root, name)
                yield SourceFile(path, path.relative_to(folder).as_posix())
