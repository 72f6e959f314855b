"""Runs parsers of documents in a child process, with limits on time and memory.

Formats such as PDF are so rich that a hostile file can keep a parser busy, or crash it. A child
reads one file after the other, so its start is paid once. One that takes too long or dies costs the
rest of its file; the next file gets a new child. One that has nothing to do ends by itself. What a
child sends is JSON, which the parent checks as it checks every other document, so that a child has
no power over its parent.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Final

import orjson

from service.retrieval.documents import Document
from service.retrieval.ingest.formats.base import Filled, Input, SourceRow, made

PAUSE_S: Final = 20.0  # seconds until the first row, and between two rows
WHOLE_S: Final = 600.0  # seconds for one file
WAIT_S: Final = 60.0  # seconds that a file waits for others
IDLE_S: Final = 60.0  # seconds until a child without a file ends
MOST: Final = 8  # children that read at the same time
MEMORY_BYTES: Final = 2 * 2**30  # of address space
LONGEST_LINE: Final = 256 * 2**20  # bytes of one row as JSON
TOO_LONG: Final = (
    "reading took longer than {:.0f} s, so the rest of the file was left out; convert the file to "
    "text or HTML, or split it"
)
DIED: Final = (
    "the parser crashed or needed more than 2 GiB of memory, so the rest of the file was left out; "
    "convert the file to text or HTML, or split it"
)
BUSY: Final = "too many other files are being read, so this one was left out; send it again"
_idle: list[Child] = []
_places = threading.BoundedSemaphore(MOST)


class Child:
    """A process that reads one file at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(2 * IDLE_S)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the parent, which ends its children
        )  # fmt: skip
        self._rest = b""
        self.used_at = time.monotonic()

    def read(self, reader: str, source: Input, content: bytes) -> Iterator[SourceRow]:
        """Yield the rows of one file. Raises EOFError if the process dies, TimeoutError."""
        assert self._process.stdin is not None
        task = orjson.dumps([reader, source.label, str(source.path), len(content)])
        try:
            self._process.stdin.write(task + b"\n" + content)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EOFError from None
        ends = time.monotonic() + WHOLE_S
        while (row := orjson.loads(self._line(min(ends, time.monotonic() + PAUSE_S)))) is not None:
            number, found, position = row
            source.raw.count = position or source.raw.count
            yield SourceRow(number, made(found) if isinstance(found, dict) else found)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self, ends: float) -> bytes:
        assert self._process.stdout is not None
        pieces, out = [self._rest], self._process.stdout.fileno()
        while b"\n" not in pieces[-1]:
            if not select.select([out], [], [], max(0.0, ends - time.monotonic()))[0]:
                raise TimeoutError
            pieces.append(os.read(out, 2**20))
            if not pieces[-1] or sum(map(len, pieces)) > LONGEST_LINE:
                raise EOFError
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        return line


def in_child(reader: str, source: Input, content: bytes) -> Iterator[SourceRow]:
    """Yield the rows of a file that `reader` ("module:function") reads in a child, and a problem if
    it cannot read it to its end."""
    if not _places.acquire(timeout=WAIT_S):
        yield SourceRow(0, BUSY)
        return
    try:
        yield from _read(_idle_or_new(), reader, source, content)
    finally:
        _places.release()


def _idle_or_new() -> Child:
    with suppress(IndexError):
        while child := _idle.pop():
            if time.monotonic() - child.used_at < IDLE_S and child.is_alive:
                return child
            child.close()
    return Child()


def _read(child: Child, reader: str, source: Input, content: bytes) -> Iterator[SourceRow]:
    last, whole = 0, False
    try:
        for row in child.read(reader, source, content):
            last = row.number
            yield row
        whole = True
    except TimeoutError:
        yield SourceRow(last, TOO_LONG.format(PAUSE_S))
    except EOFError:
        yield SourceRow(last, DIED)
    finally:
        if whole:
            child.used_at = time.monotonic()
            _idle.append(child)
        else:
            child.close()


@atexit.register
def close_all() -> None:
    """End all children."""
    while _idle:
        _idle.pop().close()


def serve(tasks: BinaryIO, rows: BinaryIO, patience_s: float) -> None:
    """Read the files that the parent sends, until it ends, or sends none for so long."""
    while select.select([tasks], [], [], patience_s)[0] and (line := tasks.readline()):
        reader, label, path, size = orjson.loads(line)
        content, raw = tasks.read(size), Filled(io.BytesIO())
        source = Input(label, Path(path), io.BytesIO(), b"", False, raw)
        module, _, name = reader.partition(":")
        for row in getattr(import_module(module), name).parse(source, content):
            found = row.found.as_json() if isinstance(row.found, Document) else row.found
            rows.write(orjson.dumps([row.number, found, raw.count]) + b"\n")
            rows.flush()
        rows.write(b"null\n")
        rows.flush()


def _limit_memory() -> None:
    import resource  # noqa: PLC0415

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    _limit_memory()
    serve(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]))
