"""Digests of the files of a collection's embedded stores while nothing is written.

`digests.json` in the folder of a generation has the size and the CRC-32 of each file. It is removed
before the first change of a writer and written again at its end, so it means nothing while the
manifest says that a write has begun. Native code also changes files without changing what they
hold, when a shard is opened or its graph is put in place: meanwhile the digests have another name,
so that a kill is not taken for damage. What is read is bounded: of larger collections only the
smaller files are covered, and the digest of each passage (`records.digest_of`).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Set
from pathlib import Path
from types import MappingProxyType
from typing import Final

import orjson

from service.core.files import sync_folder, write_whole

FILE: Final = "digests.json"
ASIDE: Final = "digests.before.json"
SIDES: Final = ("bm25", "dense")
BUDGET: Final = 64_000_000  # bytes read, a twentieth of a second
SMALL: Final = 1_000_000
BLOCK: Final = 1 << 18

Digests = dict[str, list[int]]  # size and CRC-32 by path, relative to the folder


def seal(
    folder: Path,
    kept: Mapping[str, list[int]] = MappingProxyType({}),
    spoilt: Set[str] = frozenset(),
) -> None:
    """Write the digests, which ends `set_aside`. Those in `kept` are taken over for large files of
    the same size, which opening a store does not change, and for sides that are `spoilt`."""
    found: Digests = {name: each for name, each in kept.items() if name.split("/")[0] in spoilt}
    left = BUDGET
    whole = [folder / side for side in SIDES if side not in spoilt]
    # The shard prepares the next file of its log, `tmp-…`, in a thread of its own.
    paths = [
        each
        for side in whole
        for each in side.rglob("*")
        if not each.name.startswith("tmp-") and each.is_file()
    ]
    for path in sorted(paths, key=lambda each: each.stat().st_blocks):
        status, name = path.stat(), str(path.relative_to(folder))
        left -= status.st_blocks * 512
        if not status.st_size or left < 0:
            continue
        known = kept.get(name)
        if known and known[0] == status.st_size > SMALL:
            found[name] = known
        else:
            found[name] = [status.st_size, _digest(path)]
    body = orjson.dumps(found)
    write_whole(folder / FILE, b"%08x\n" % zlib.crc32(body) + body)
    (folder / ASIDE).unlink(missing_ok=True)


def unseal(folder: Path) -> None:
    """Remove the digests, durably, before the files change."""
    found = [path for path in (folder / FILE, folder / ASIDE) if path.exists()]
    for path in found:
        path.unlink()
    if found:
        sync_folder(folder)


def set_aside(folder: Path) -> None:
    """Note, durably, that native code may change files of the dense side, but not what they hold,
    until `seal`."""
    if (folder / FILE).exists():
        (folder / FILE).rename(folder / ASIDE)
        sync_folder(folder)


def unchanged(folder: Path) -> Digests | None:
    """Return the digests that files must still have after a kill since `set_aside`; None if there
    was none."""
    kept = sealed(folder, ASIDE)
    return kept and {name: each for name, each in kept.items() if not name.startswith("dense/")}


def sealed(folder: Path, file: str = FILE) -> Digests | None:
    """Return the digests; None if there are none, or damaged ones."""
    try:
        check, _, body = (folder / file).read_bytes().partition(b"\n")
    except OSError:
        return None
    found: Digests | None = orjson.loads(body) if check == b"%08x" % zlib.crc32(body) else None
    return found


def damage(folder: Path) -> list[str]:
    """Return the paths of the files that are not as they were written."""
    return [
        name
        for name, (size, digest) in (sealed(folder) or unchanged(folder) or {}).items()
        if not _same(folder / name, size, digest)
    ]


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
