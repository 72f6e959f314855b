"""Digests of the files of an embedded store while nothing is written.

`<side>.digests.json`, beside the folder of a store, has the size and the CRC-32 of each file in it.
It is removed before the first change of a writer and written again at its end, so it means nothing
while the manifest says that a write has begun. Native code also changes files of the dense side
without changing what they hold, when a shard is opened or its graph is put in place: meanwhile the
digests have another name, so that a kill is not taken for damage. What is read is bounded: of
larger stores only the smaller files are covered, and the digest of each passage
(`documents.digest`).
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

import orjson

from service.core.files import sync_folder, write_whole

BUDGET: Final = 32_000_000  # bytes read of a store, a fortieth of a second
BLOCK: Final = 1 << 18

Digests = dict[str, list[int]]  # size and CRC-32 by path, relative to the folder


def seal(folder: Path) -> None:
    """Write the digests of a store, which ends `set_aside`."""
    found: Digests = {}
    left = BUDGET
    # The shard prepares the next file of its log, `tmp-…`, in a thread of its own.
    paths = [
        path
        for path in folder.rglob("*")
        if not path.name.startswith("tmp-") and path.is_file() and path.stat().st_size
    ]
    for path in sorted(paths, key=lambda path: path.stat().st_blocks):
        status = path.stat()
        left -= status.st_blocks * 512
        if left < 0:
            break
        found[str(path.relative_to(folder))] = [status.st_size, _digest(path)]
    body = orjson.dumps(found)
    write_whole(_file(folder), b"%08x\n" % zlib.crc32(body) + body)
    _aside(folder).unlink(missing_ok=True)


def unseal(folder: Path) -> None:
    """Remove the digests of a store, durably, before its files change."""
    found = [path for path in (_file(folder), _aside(folder)) if path.exists()]
    for path in found:
        path.unlink()
    if found:
        sync_folder(folder.parent)


def set_aside(folder: Path) -> bool:
    """Note, durably, that native code may change files, but not what they hold, until `seal`.
    Returns whether there were digests, perhaps set aside before a kill."""
    if sealed(folder) is not None:
        _file(folder).rename(_aside(folder))
        sync_folder(folder.parent)
    return _aside(folder).exists()


def sealed(folder: Path) -> Digests | None:
    """Return the digests of a store; None if there are none, or damaged ones."""
    try:
        check, _, body = _file(folder).read_bytes().partition(b"\n")
    except OSError:
        return None
    found: Digests | None = orjson.loads(body) if check == b"%08x" % zlib.crc32(body) else None
    return found


def damage(folder: Path) -> list[Path]:
    """Return the files of a store that are not as they were written."""
    return [
        folder / name
        for name, (size, digest) in (sealed(folder) or {}).items()
        if not _same(folder / name, size, digest)
    ]


def _file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.digests.json")


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.digests.before.json")


def _same(path: Path, size: int, digest: int) -> bool:
    try:
        return path.stat().st_size == size and _digest(path) == digest
    except OSError:
        return False


def _digest(path: Path) -> int:
    """CRC-32 of the blocks that are not zero, with their places; most of a shard is zero."""
    digest, at = 0, 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            if block.count(0) != len(block):
                digest = zlib.crc32(block, zlib.crc32(b"%d" % at, digest))
            at += len(block)
    return digest
