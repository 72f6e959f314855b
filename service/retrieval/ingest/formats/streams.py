"""Opens a file or standard input, decompresses it, and counts what was read of it."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

STANDARD_INPUT = Path("-")
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
HEAD = 65_536  # bytes that show the format
# What reading raises when compressed data is cut short or broken; BadGzipFile is an OSError.
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError)


class NotCompressed(Exception):
    """The name says compressed, the content is not."""


@dataclass(frozen=True, slots=True)
class Input:
    """An open input. `label` names the document that a text file is; `head` is not yet read."""

    label: str
    path: Path
    stream: BinaryIO
    head: bytes
    compressed: bool
    raw: _Counted

    def position(self) -> int:
        """Bytes of the file read so far; what is read ahead counts."""
        return self.raw.count

    def reached(self, share: float) -> None:
        """Say how far a reader is that opens the file by itself."""
        self.raw.count = int(share * self.path.stat().st_size)


@contextmanager
def open_input(path: Path, label: str) -> Iterator[Input]:
    """`path`, or standard input for `-`. Which compression it has is seen from its content.

    Raises OSError, NotCompressed. Reading from it raises one of DAMAGED, too.
    """
    with ExitStack() as stack:
        file = sys.stdin.buffer if path == STANDARD_INPUT else stack.enter_context(_opened(path))
        raw = _Counted(file)
        buffered = io.BufferedReader(raw, HEAD)
        magic = buffered.peek(4)
        opened = _decompressed(cast(BinaryIO, buffered), magic)
        if opened is None and magic and path.suffix.lower() in {".gz", ".zst"}:
            raise NotCompressed
        stream = io.BufferedReader(_Filled(opened), HEAD) if opened else buffered
        head = stream.peek(HEAD)
        yield Input(label, path, cast(BinaryIO, stream), head, opened is not None, raw)


def plain_suffix(path: Path) -> str:
    """`.jsonl` of `corpus.jsonl.gz`, in lower case."""
    compressed = path.suffix.lower() in {".gz", ".zst"}
    return Path(path.stem if compressed else path.name).suffix.lower()


def _opened(path: Path) -> BinaryIO:
    return path.open("rb", buffering=0)


def _decompressed(file: BinaryIO, magic: bytes) -> BinaryIO | None:
    """None for what is not compressed."""
    if magic.startswith(GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if magic.startswith(ZSTD):
        return cast(BinaryIO, zstd.ZstdFile(file))
    return None


class _Filled(io.RawIOBase):
    """Reads until the buffer is full or the input ends: one peek then shows a whole head."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """What came before a failure is given first."""
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
        return size


class _Counted(_Filled):
    """And counts the bytes."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.count = 0

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        size = super().readinto(buffer)
        self.count += size
        return size
