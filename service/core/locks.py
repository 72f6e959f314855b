"""A data directory belongs to one process, because tantivy and qdrant-edge allow only one.

The owner holds an `flock` on `<data directory>/lock` and writes its pid and, if it serves HTTP, its
URL to that file, so that `ingest` and `ask` can use its server. The kernel releases the lock with
the process, so the directory is free even after kill -9.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import orjson

from service.core.errors import StoreBusy, StoreError

FILE = "lock"
LOOK_S = 0.2  # seconds; a process that only looks holds the lock for far less
PATIENCE_S = 1.0  # seconds within which a new owner has written its note


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds a data directory. `url` is set only if it serves HTTP."""

    pid: int
    url: str | None = None


class DataDirectory:
    """Holds a data directory from `acquire` until the end of the `with` block."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def set_url(self, url: str | None) -> None:
        """Publish the URL at which this process serves HTTP."""
        note = orjson.dumps({"pid": os.getpid(), "url": url})
        os.pwrite(self._handle, note.ljust(os.fstat(self._handle).st_size), 0)
        os.ftruncate(self._handle, len(note))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.ftruncate(self._handle, 0)
        os.close(self._handle)


def acquire(data_dir: Path) -> DataDirectory:
    """Lock `data_dir`, and create it if necessary. Blocks for at most one second.

    Raises StoreBusy, which names the owner, or StoreError if the directory cannot be written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(data_dir / FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable(data_dir, error) from error
    if owner := _lock(handle, fcntl.LOCK_EX, LOOK_S):
        os.close(handle)
        who = f"process {owner.pid}" if owner.pid else "another process"
        where = f" (it serves {owner.url})" if owner.url else ""
        raise StoreBusy(
            f"the data directory {data_dir} is in use by {who}{where}; stop that process, choose "
            "another directory with --data, or, if it serves HTTP and the command has the option "
            "--url, pass its URL"
        )
    directory = DataDirectory(handle)
    try:
        directory.set_url(None)
    except OSError as error:
        os.close(handle)
        raise _unusable(data_dir, error) from error
    return directory


def _unusable(data_dir: Path, error: OSError) -> StoreError:
    taken = isinstance(error, FileExistsError | NotADirectoryError)
    reason = "part of this path is a file" if taken else error.strerror
    advice = (
        "make room on its disk"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}
        else "choose a folder that this user can write to, with --data or REVELATOR_DATA_DIR"
    )
    return StoreError(f"the data directory {data_dir} cannot be used: {reason}; {advice}")


def find_owner(data_dir: Path) -> Owner | None:
    """Return the process that holds `data_dir`, or None if it is free. Blocks for at most one
    second."""
    try:
        handle = os.open(data_dir / FILE, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _lock(handle, fcntl.LOCK_SH, 0.0)
    finally:
        os.close(handle)


def find_server(data_dir: Path, url: str | None) -> str | None:
    """Return the URL of the server to use: `url`, else that of the process that holds `data_dir`.
    None if the work is to be done in this process. Blocks for at most one second."""
    owner = find_owner(data_dir) if url is None else None
    return url or (owner.url if owner else None)


def _lock(handle: int, kind: int, look_s: float) -> Owner | None:
    """Take the lock, or return its owner, after `look_s`, in which others may only look; of pid 0
    if it has not written its note within `PATIENCE_S`."""
    started = time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return None
        waited, owner = time.monotonic() - started, _note(handle)
        if waited > PATIENCE_S or (owner and waited > look_s and _lives(owner)):
            return owner or Owner(pid=0)
        time.sleep(0.01)


def _note(handle: int) -> Owner | None:
    try:
        note = orjson.loads(os.pread(handle, 4_096, 0))
        return Owner(int(note["pid"]), note["url"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None  # the owner is still writing it


def _lives(owner: Owner) -> bool:
    """Whether a note's owner is alive. The note of a previous owner, which was killed, is not
    valid.
    """
    try:
        os.kill(owner.pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True
