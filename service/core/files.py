"""Files and folders that are either complete or absent, also after a kill or a power cut."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from service.core.errors import StoreError

# Bytes that must be free on a disk before anything is added to an embedded store, and before its
# vectors are opened: on a tmpfs the sparse files of a small shard take 8 MB more when it is opened.
ROOM = 32_000_000
OPENING_ROOM = 12_000_000

_DISCARDED = ".deleted-"


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file durably. Readers see the old or the new contents, never a part.

    A string is written as UTF-8; characters without a UTF-8 form (lone surrogates) are escaped.
    Raises OSError, and then the file is unchanged.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", errors="backslashreplace")
    with whole_file(path) as file:
        file.write(content)


def save_whole(path: Path, content: bytes | str) -> None:
    """Write a file as `write_whole` does, for a user who named it. Raises StoreError."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new version of a file, which replaces the old one when the block ends.

    Creates the folder if necessary. After an exception in the block, the old version stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


class LineFile:
    """A file to which only this process appends lines. `content` is what it holds when it is
    opened, without an incomplete last line, which a kill may leave."""

    def __init__(self, path: Path, handle: int) -> None:
        with os.fdopen(os.dup(handle), "rb") as file:
            content = file.read()
        self.content = content[: content.rfind(b"\n") + 1]
        self._path, self._handle = path, handle
        self._size = len(self.content)

    def append(self, line: bytes) -> None:
        """Append a line, in place of an incomplete one. Raises StoreError if that fails; the
        earlier lines are preserved."""
        try:
            os.ftruncate(self._handle, self._size)
            written = os.write(self._handle, line + b"\n")
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be written: {error.strerror}") from None
        if written <= len(line):
            raise StoreError(f"{self._path}: the disk is full; free space and run it again")
        self._size += written


@contextmanager
def open_lines(path: Path) -> Iterator[LineFile]:
    """Open a file of lines, or create it and its folder.

    Raises StoreError if it cannot be opened, or if another process has opened it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened: {error.strerror}") from None
    try:
        _lock(handle, path)
        yield LineFile(path, handle)
    finally:
        os.close(handle)


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise StoreError(f"{path}: another process is writing it; wait until it ends") from None


def discard(folder: Path) -> None:
    """Delete a folder, if it exists. It is renamed first, so that a kill never leaves a part of it
    under its name; `sweep` deletes such remains."""
    trash = folder.with_name(f"{_DISCARDED}{folder.name}-{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def sweep(root: Path) -> None:
    """Delete the remains of a killed `discard` in `root`, in its folders and in theirs."""
    for above in ("", "*/", "*/*/"):
        for left in root.glob(f"{above}{_DISCARDED}*"):
            shutil.rmtree(left, ignore_errors=True)


def check_room(folder: Path, needed: int = ROOM, purpose: str = "to add passages") -> None:
    """Raise StoreError unless so many bytes are free on the disk of a folder, which need not exist
    yet.

    The embedded vectors are in memory-mapped files that grow when they are written. If there is no
    room on the disk for a page, the process ends (SIGBUS) without an error that could be caught.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if free < needed:
        raise StoreError(
            f"disk full: the disk of {folder} has {free / 1e6:.0f} MB free, and "
            f"{needed / 1e6:.0f} MB are needed {purpose}; make room, or choose another folder with "
            "--data, and try again: what was added stays"
        )


def sync_folder(folder: Path) -> None:
    """Sync a folder, which makes the names of its new files durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
