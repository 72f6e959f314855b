"""A disk that fills up under the embedded stores: additions are refused before they begin, and go
on when there is room. Without the look at the free space, a page of a memory-mapped file that finds
no room would end the process; the part `disk` of the siege tries that on real file systems."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from service.core import files
from service.core.errors import RetrievalFailure, StoreError
from service.retrieval.base import SearchRequest
from service.retrieval.collections.originals import Originals
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.search.hybrid import HybridRetriever
from tests.faults.killing import NAME, documents, run, state
from tests.unit.retrieval.worlds import SETTINGS, opened

COUNT = 300


class Disk:
    """How many looks at the free space find room; None: all. Then `left` bytes are free."""

    looks: int | None = None
    left = files.ROOM - 1

    def look(self, folder: Path) -> SimpleNamespace:
        room = self.looks is None or self.looks > 0
        if self.looks is not None:
            self.looks -= 1
        return SimpleNamespace(f_bavail=files.ROOM if room else self.left, f_frsize=1)


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
    async with opened(data) as collections:
        await collections.delete_document(NAME, "d1")
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


def test_an_original_leaves_the_room_that_vectors_need(tmp_path: Path, disk: Disk) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(b"x" * 1_000)
    originals = Originals(tmp_path / "collections", kept=True)
    disk.looks, disk.left = 0, files.ROOM + 999
    with pytest.raises(StoreError, match=r"needed to keep the original of notes\.txt"):
        originals.keep(NAME, file.name, file)
    assert originals.find(NAME, file.name) is None
    disk.left = files.ROOM + 1_000
    originals.keep(NAME, file.name, file)
    assert originals.find(NAME, file.name) is not None


@pytest.mark.parametrize(("left", "missing"), [(14_000_000, ()), (1_000_000, ("dense",))])
async def test_a_restart_on_a_nearly_full_disk_answers_from_what_can_be_opened(
    tmp_path: Path, disk: Disk, left: int, missing: tuple[str, ...]
) -> None:
    await run(tmp_path / "data", documents(tmp_path / "file.jsonl", 3), HashingEmbedder())
    disk.looks, disk.left = 0, left
    async with opened(tmp_path / "data") as collections:
        retriever = HybridRetriever(collections, HashingEmbedder(), SETTINGS)
        found = await retriever.search(SearchRequest("passage word", 3, NAME))
        assert (len(found.passages), found.missing) == (3, missing)
        if missing:
            with pytest.raises(RetrievalFailure, match="needed to open the vectors of collection"):
                await retriever.search(SearchRequest("passage word", 3, NAME, "dense"))
        assert "disk full: the disk of" in (await collections.disk_problem() or "")
