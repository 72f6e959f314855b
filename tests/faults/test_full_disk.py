"""A disk that fills up under the embedded stores: additions are refused before they begin, and go
on when there is room. Without the look at the free space, a page of a memory-mapped file that finds
no room would end the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.core import files
from service.core.errors import StoreError
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.sample import Sample
from service.retrieval.embedding import HashingEmbedder
from tests.faults.killing import NAME, documents, run, state

pytestmark = pytest.mark.anyio

COUNT = 300


class Disk:
    """How many looks at the free space find room; None: all."""

    looks: int | None = None

    def look(self, folder: Path) -> SimpleNamespace:
        room = self.looks is None or self.looks > 0
        if self.looks is not None:
            self.looks -= 1
        return SimpleNamespace(f_bavail=files.ROOM if room else files.ROOM - 1, f_frsize=1)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(files.os, "statvfs", made.look)
    return made


async def test_nothing_is_made_on_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    disk.looks = 0
    with pytest.raises(StoreError, match="make room, or choose another folder"):
        await run(tmp_path / "data", documents(tmp_path / "file.jsonl", 3), HashingEmbedder())
    assert not list((tmp_path / "data").glob("collections/*"))


async def test_what_is_there_stays_complete_and_can_be_deleted(tmp_path: Path, disk: Disk) -> None:
    data = tmp_path / "data"
    await run(data, documents(tmp_path / "old.jsonl", 3), HashingEmbedder())
    before = await state(data)
    disk.looks = 0
    with pytest.raises(StoreError, match="MB free"):
        await run(data, documents(tmp_path / "new.jsonl", 9), HashingEmbedder())
    assert await state(data) == before
    collections = Collections(data, HashingEmbedder(), Sample(data / "no-sample"))
    await collections.delete_document(NAME, "d1")
    await collections.aclose()
    assert (await state(data)).manifest.documents == 2


async def test_an_ingest_that_filled_the_disk_goes_on_when_there_is_room(
    tmp_path: Path, disk: Disk
) -> None:
    file = documents(tmp_path / "file.jsonl", COUNT)
    await run(tmp_path / "undisturbed", file, HashingEmbedder())
    disk.looks = 12
    with pytest.raises(StoreError, match="what was added stays"):
        await run(tmp_path / "data", file, HashingEmbedder())
    assert (await state(tmp_path / "data")).manifest.state == "building"
    disk.looks = None
    await run(tmp_path / "data", file, HashingEmbedder())
    assert await state(tmp_path / "data") == await state(tmp_path / "undisturbed")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 48 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here; run it as root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(params=["tmpfs", "ext4"])
def any_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A real file system of 160 MB."""
    folder, image = tmp_path / "disk", tmp_path / "image"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", folder]
    if request.param == "ext4":
        with image.open("wb") as file:
            file.truncate(160_000_000)
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("there is no mkfs.ext4; install e2fsprogs")
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        mount = ["mount", "-o", "loop", image, folder]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("nothing can be mounted here; run it as root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


SEARCH = """
import sys, anyio
from pathlib import Path
from service.core.errors import RevelatorError
from service.core.settings import RetrievalSettings
from service.retrieval.base import SearchRequest
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.sample import Sample
from service.retrieval.embedding import HashingEmbedder
from service.retrieval.search.hybrid import HybridRetriever

async def main(data, name):
    collections = Collections(data, HashingEmbedder(), Sample(data / "no-sample"))
    retriever = HybridRetriever(collections, HashingEmbedder(), RetrievalSettings())
    for side in ("hybrid", "dense"):
        try:
            found = await retriever.search(SearchRequest("passage word", 3, name, side))
            print(side, len(found.passages), *found.missing)
        except RevelatorError as error:
            print(side, error.detail)
    print(await collections.disk_problem())
    await collections.aclose()

anyio.run(main, Path(sys.argv[1]), sys.argv[2])
"""


def fill(folder: Path, free: int) -> None:
    """Leave so many bytes free."""
    status = os.statvfs(folder)
    left = status.f_bavail * status.f_frsize - free
    with (folder / f"other{free}").open("wb") as file:
        while left > 0:
            left -= file.write(bytes(min(left, 1 << 20)))
        file.flush()
        os.fsync(file.fileno())


def searched(data: Path) -> list[str]:
    command = [sys.executable, "-c", SEARCH, str(data), NAME]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.splitlines()


def test_a_restart_on_a_nearly_full_disk_answers_from_what_can_be_opened(
    any_disk: Path, tmp_path: Path
) -> None:
    """With the sparse files read into memory, the process died of SIGBUS here."""
    data = any_disk / "data"
    assert ingest(data, documents(tmp_path / "file.jsonl", COUNT)).returncode == 0
    packed = tmp_path / "packed"  # copied as a backup would be, so that no file has room set aside
    subprocess.run(["cp", "-r", "--sparse=always", data, packed], check=True)
    subprocess.run(["rm", "-r", data], check=True)
    subprocess.run(["cp", "-r", "--sparse=always", packed, data], check=True)
    fill(any_disk, 14_000_000)
    both, dense, full = searched(data)
    assert (both, dense) == ("hybrid 3", "dense 3")
    assert "disk full: the disk of" in full
    fill(any_disk, 1_000_000)
    both, dense, full = searched(data)
    assert both == "hybrid 3 dense"
    assert "MB are needed to open the vectors of collection 'killed'" in dense


def ingest(folder: Path, file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service", "ingest", "--collection", NAME]
    own = {"REVELATOR_RETRIEVAL__EMBEDDING_MODEL": "hashing"}
    return subprocess.run(
        [*command, "--data", str(folder), str(file)],
        capture_output=True, text=True, env=os.environ | own, timeout=100, check=False,
    )  # fmt: skip


def test_a_real_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    file = documents(tmp_path / "file.jsonl", COUNT)
    (small_disk / "other").write_bytes(bytes(30_000_000))
    refused = ingest(small_disk / "data", file)
    assert refused.returncode == 2, refused.stderr
    assert "MB are needed to add passages; make room" in refused.stderr
    (small_disk / "other").write_bytes(bytes(47_500_000))
    refused = ingest(small_disk / "data", file)
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
    (small_disk / "other").unlink()
    assert ingest(small_disk / "data", file).returncode == 0
