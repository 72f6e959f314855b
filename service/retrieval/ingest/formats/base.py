"""The input and the output of every format of a corpus.

An `Input` is an open file or standard input, decompressed. A format converts it to rows: each is a
document, or the reason why there is none.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import orjson

from service.core.extras import missing_packages
from service.retrieval.documents import BadDocument, Document, parse_document

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

STANDARD_INPUT = Path("-")
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
HEAD = 65_536  # bytes that are enough to detect the format
# The exceptions of reading truncated or damaged compressed data; BadGzipFile is an OSError.
NO_ARCHIVE = "the file name says compressed, but the content is not gzip or zstd; download it again"
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError)


@dataclass(frozen=True, slots=True)
class Input:
    """An open input. `label` is the document id of a text file; `head` has the first bytes, still
    to be read."""

    label: str
    path: Path
    stream: BinaryIO
    head: bytes
    compressed: bool
    raw: Filled

    @property
    def stem(self) -> str:
        """The name of the file without its suffix; empty for standard input."""
        return "" if self.path == STANDARD_INPUT else self.path.stem

    def position(self) -> int:
        """The number of bytes of the file read so far, including read-ahead."""
        return self.raw.count

    def reached(self, share: float) -> None:
        """Set the position, for a reader that opens the file itself."""
        self.raw.count = int(share * self.path.stat().st_size)


@contextmanager
def open_input(path: Path, label: str) -> Iterator[Input]:
    """Open `path`, or standard input for `-`. The compression is detected from the content.

    Raises OSError. Reading from it may also raise one of DAMAGED.
    """
    with ExitStack() as stack:
        file = sys.stdin.buffer if path == STANDARD_INPUT else stack.enter_context(_opened(path))
        raw = Filled(file)
        buffered = io.BufferedReader(raw, HEAD)
        magic = buffered.peek(4)
        opened: Any = None
        if magic.startswith(GZIP):
            opened = gzip.GzipFile(fileobj=buffered)
        elif magic.startswith(ZSTD):
            opened = zstd.ZstdFile(buffered)
        if opened is None and magic and path.suffix.lower() in {".gz", ".zst"}:
            raise OSError(errno.EINVAL, NO_ARCHIVE)
        stream = io.BufferedReader(Filled(opened), HEAD) if opened else buffered
        head = stream.peek(HEAD)
        yield Input(label, path, cast(BinaryIO, stream), head, opened is not None, raw)


def plain_suffix(path: Path) -> str:
    """Return the suffix without compression, in lower case: `.jsonl` for `corpus.jsonl.gz`."""
    compressed = path.suffix.lower() in {".gz", ".zst"}
    return Path(path.stem if compressed else path.name).suffix.lower()


def _opened(path: Path) -> BinaryIO:
    """Open a regular file. To open a FIFO would wait for a writer."""
    descriptor = os.open(path, os.O_RDONLY | NO_WAIT)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file, but a pipe, a device or a socket")
    return cast(BinaryIO, io.FileIO(descriptor))


class Filled(io.RawIOBase):
    """Reads until the buffer is full or the input ends, so that one peek returns a whole head, and
    counts the bytes that are read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._failure: Exception | None = None
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Bytes before a failure are returned first."""
        if self._failure:
            raise self._failure
        view, size = memoryview(buffer), 0
        while size < len(view):
            try:
                chunk = self._file.read(len(view) - size)
            except (*DAMAGED, OSError) as error:
                if not size:
                    raise
                self._failure = error
                break
            if not chunk:
                break
            view[size : size + len(chunk)] = chunk
            size += len(chunk)
        self.count += size
        return size


LARGEST = 50_000_000  # bytes of a file that is loaded as a whole
LONGEST_ROW = 1_000_000  # bytes; longer lines are invalid
TOO_LARGE = f"the file is larger than {LARGEST:,} bytes; split it"
TOO_LONG = f"longer than {LONGEST_ROW:,} bytes; split the document"


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A line or row (from 1; 0 is the whole file): a document, or its problem.

    `found` is None at the end of a file that is cut into pages or sections, if none was omitted
    because of an error: stored documents of this file that did not occur are no longer in it.
    """

    number: int
    found: Document | str | None


ALL_READ: Final = SourceRow(0, None)


Reader = Callable[[Input], Iterator[SourceRow]]


def reads_whole(
    what: str = "", *packages: str, part: str = "", extra: str = "documents"
) -> Callable[[Callable[[Input, bytes], Iterator[SourceRow]]], Reader]:
    """Return a decorator that makes a reader of a function of the decompressed content. The reader
    reports if one of `packages`, of the extra `extra`, is missing, if the file is too large, or
    if the parser fails. `part` is the part of a file of Office that has its text. A function that
    needs packages runs in a child process, by its attribute `parse`.
    """

    def wrap(read: Callable[[Input, bytes], Iterator[SourceRow]]) -> Reader:
        def parse(source: Input, content: bytes) -> Iterator[SourceRow]:
            if part and (problem := package_problem(content, part, what)):
                yield SourceRow(0, problem)
                return
            try:
                yield from read(source, content)
            except Exception as error:  # a damaged file may fail anywhere in the parser
                reason = str(error).strip() or type(error).__name__
                yield SourceRow(
                    0, f"the {what} file is damaged ({reason}); save or download it again"
                )

        @wraps(read)
        def reader(source: Input) -> Iterator[SourceRow]:
            if problem := missing_packages(what, packages, extra):
                yield SourceRow(0, problem)
                return
            content = source.stream.read(LARGEST + 1)
            if len(content) > LARGEST:
                yield SourceRow(0, TOO_LARGE)
            elif packages:
                from service.retrieval.ingest.formats.child import in_child  # noqa: PLC0415

                yield from in_child(f"{read.__module__}:{read.__name__}", source, content)
            else:
                yield from read(source, content)

        reader.parse = parse  # type: ignore[attr-defined]
        return reader

    return wrap


MOST_UNPACKED = 4 * LARGEST  # bytes of the parts with text; images are not read
_OLD = b"\xd0\xcf\x11\xe0"  # of encrypted files and of Office before 2007


def package_problem(content: bytes, part: str, format: str) -> str | None:
    """Return why a file of Office, of which `part` has the text, cannot be read, if so."""
    if content.startswith(_OLD):
        return (
            f"the file has a password or is in a format before {format}; save a copy without a "
            f"password as .{format.lower()}"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            read = [
                entry for entry in packed.infolist() if entry.filename.endswith((".xml", ".rels"))
            ]
            if sum(entry.file_size for entry in read) > MOST_UNPACKED:
                return f"its text is larger than {MOST_UNPACKED:,} bytes; split it"
            packed.getinfo(part)
    except (zipfile.BadZipFile, KeyError):
        name = f".{format.lower()}"
        return f"not a {format} file; save it in its program or LibreOffice as {name}"
    return None


Maker = Callable[[object], Document]


def made(value: object, make: Maker = parse_document) -> Document | str:
    """Return the document of a decoded row, or its problem."""
    try:
        return make(value)
    except BadDocument as error:
        return str(error)


def plain(value: dict[str, Any]) -> dict[str, Any] | str:
    """Return a row as plain JSON (a date becomes its ISO text), or its problem."""
    try:
        encoded = orjson.dumps(value)
    except (TypeError, ValueError) as error:
        return f"not plain JSON: {error}"
    if len(encoded) > LONGEST_ROW:
        return TOO_LONG
    decoded: dict[str, Any] = orjson.loads(encoded)
    return decoded


BOM = b"\xef\xbb\xbf"
_SKIP = 65_536  # bytes read at once of an overlong line


def read_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line's number, from 1, and its content without line end and byte order mark; None
    for an overlong line.
    """
    number = 0
    while line := stream.readline(LONGEST_ROW + 2):
        number += 1
        content = line.rstrip(b"\r\n")
        if number == 1:
            content = content.removeprefix(BOM)
        if len(content) > LONGEST_ROW:
            while line and not line.endswith(b"\n"):
                line = stream.readline(_SKIP)
            yield number, None
        else:
            yield number, content


def not_utf8(error: UnicodeDecodeError, where: str = " of the line") -> str:
    return f"not UTF-8: byte {error.start + 1}{where}"
