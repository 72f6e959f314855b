"""A disk that is nearly full when the server is started again, on tmpfs and on ext4."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Final

from tests.faults.siege.corruption import DOCUMENTS, TEXTS
from tests.faults.siege.world import Gateway, Plan, Row, gateway

SIZE_MB: Final = 320
FREE_MB: Final = (24, 0, 1, 16, 8, 4, 31, 33, 40, 64)  # of these, the tests use the first
NAMES: Final = ("default", "one", "two")


@contextmanager
def mounted(kind: str, folder: Path) -> Iterator[Path]:
    """A file system of `SIZE_MB`. Raises CalledProcessError without the right to mount."""
    place, image = folder / kind, folder / f"{kind}.img"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs"]
    if kind == "ext4":
        subprocess.run(["truncate", "-s", f"{SIZE_MB}M", image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        options = ["-o", "loop", str(image)]
    subprocess.run(["mount", *options, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
        image.unlink(missing_ok=True)


def leave_free(place: Path, free_mb: int) -> None:
    """Fill the disk to so many MB, or to what ext4 needs for its own tables."""
    status = os.statvfs(place)
    surplus = status.f_bavail * status.f_frsize - free_mb * 1_000_000
    with (place / "other").open("wb") as file:
        while surplus > 0:
            try:
                os.posix_fallocate(file.fileno(), 0, surplus)
                break
            except OSError:
                surplus -= 100_000


async def use(served: Gateway, told: str, ended: Row, lost: Row) -> None:
    """Ask, read and write in each collection, until the server has ended."""
    for name in NAMES:
        for retriever in ("bm25", "dense"):
            await served.search(name, retriever)
        status, found = await served.document(name, "d1")
        if status == 404 or (status == 200 and " ".join(found.values())[:20] != TEXTS["d1"][:20]):
            lost.add(f"{name}: {status}; {told}")
        more = {
            "documents": [{"id": "d0", "text": TEXTS["d0"]}, {"id": "x", "text": "Etna. " * 99}]
        }
        await served.send("POST", f"/collections/{name}/documents", more)
    if await served.ended(1.0):
        ended.add(f"with {served.process.returncode}: {told}")


async def disk(plan: Plan, folder: Path) -> list[Row]:
    ended, lost = Row("disk", "servers that end", 0), Row("disk", "acknowledged data lost", 0)
    refused = Row("disk", "starts refused, saying why", 0, inf)  # without one byte for its lock
    kinds = ("tmpfs", "ext4")
    cases = [(kind, free) for free in FREE_MB for kind in kinds]
    for kind, free in cases[:: max(1, round(len(cases) / plan.count(len(cases))) // 2 * 2 + 1)]:
        told = f"{free} MB free on {kind}"
        with mounted(kind, folder) as place:
            data, errors = place / "data", folder / "errors"
            async with gateway(data, errors=errors) as served:
                for name in NAMES:
                    documents = [{"id": key, "text": text} for key, text in TEXTS.items()]
                    await served.send("PUT", f"/collections/{name}", {})
                    path = f"/collections/{name}/documents"
                    status, body = await served.send("POST", path, {"documents": documents})
                    assert status == 200, body
                await served.end()
            leave_free(place, free)
            for row in (ended, lost, refused):
                row.count += 1
            for again in range(2):
                try:
                    async with gateway(data, errors=errors) as served:
                        await use(served, f"{told}, start {again + 1}", ended, lost)
                except ConnectionError as error:
                    said = "make room on its disk" in errors.read_text()[-300:]
                    (refused if said else ended).add(f"{told}, start {again + 1}: {error}")
            (place / "other").unlink(missing_ok=True)
            async with gateway(data, errors=errors) as served:
                for name in NAMES:
                    found = [(await served.document(name, each))[0] for each in TEXTS]
                    if found != [200] * DOCUMENTS:
                        lost.add(f"{name}: {found}, with room again; {told}")
        place.rmdir()
    return [ended, lost, refused]
