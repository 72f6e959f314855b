"""Writes that a kill interrupts at each of their durable steps: the data directory as it is before
each step is opened by a new process, so to say, which puts it right."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from service.core.errors import NotFound
from service.core.settings import RetrievalSettings
from service.retrieval.base import SearchRequest
from service.retrieval.collections import manifest
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.sample import Sample
from service.retrieval.embedding import HashingEmbedder
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore
from service.retrieval.stores.tantivy_store import TantivyStore
from tests.support.documents import ingest_documents

pytestmark = pytest.mark.anyio

NAME = "c"
STEPS = (
    (QdrantEdgeStore, "upsert"),
    (QdrantEdgeStore, "delete"),
    (TantivyStore, "replace"),
    (manifest, "write_whole"),
)


def document(number: int, text: str = "stands in the old town") -> dict[str, str]:
    title = f"Tower {number}"
    return {"id": f"d{number}", "title": title, "text": f"{title} {text}."}


class Snapshots:
    """Copies of a data directory, each made before a durable step."""

    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._data = data
        self._monkeypatch = monkeypatch
        self.made: list[Path] = []

    def _copying(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def copied(*arguments: Any) -> Any:
            copy = self._data.with_name(f"killed-{len(self.made)}")
            copy_tree(self._data, copy)
            self.made.append(copy)
            return step(*arguments)

        return copied

    async def of(self, work: Callable[[], Awaitable[object]]) -> None:
        with self._monkeypatch.context() as patched:
            for owner, name in STEPS:
                patched.setattr(owner, name, self._copying(getattr(owner, name)))
            await work()


def copy_tree(data: Path, copy: Path) -> None:
    """Copy what is not zero, as the files of the dense store are mostly holes."""
    for path in data.rglob("*"):
        target = copy / path.relative_to(data)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as read, target.open("wb") as written:
            for at, block in blocks(read):
                written.seek(at)
                written.write(block)
            written.truncate(path.stat().st_size)


def blocks(file: Any) -> Iterator[tuple[int, bytes]]:
    at = 0
    while block := file.read(1 << 16):
        if block.strip(b"\0"):
            yield at, block
        at += len(block)


def open_collections(data: Path) -> Collections:
    return Collections(data, HashingEmbedder(), Sample(data / "no-sample"))


async def no_ghosts(collections: Collections) -> None:
    """What dense search returns exists."""
    retriever = HybridRetriever(collections, HashingEmbedder(), RetrievalSettings())
    for words in ("tower", "old town", "new harbour"):
        found = await retriever.search(SearchRequest(words, 5, NAME, "dense"))
        assert len({hit.rank for hit in found.passages}) == len(found.passages)
        for hit in found.passages:
            try:
                await collections.document(NAME, hit.passage.passage_id)
            except NotFound:
                pytest.fail(f"{hit.passage.passage_id} does not exist")


async def put_right(data: Path) -> list[str]:
    """Open and search, wait until the collection is put right, and return the ids that are left."""
    collections = open_collections(data)
    await no_ghosts(collections)
    righting = (await collections.get(NAME)).righting
    if righting is not None:
        await righting
    await no_ghosts(collections)
    collection = await collections.get(NAME)
    report = await collections.check(NAME)
    assert {each.kind for each in report.findings} <= {"building"}, report.findings
    assert collection.manifest.documents == report.documents
    assert not collection.manifest.deleting
    ids = await anyio.to_thread.run_sync(
        lambda: sorted(each.document_id for each in collection.bm25.records())
    )
    await collections.aclose()
    return ids


@pytest.mark.parametrize("count", [1, 3])
async def test_a_killed_deletion_is_completed_at_the_next_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    data = tmp_path / "data"
    collections = open_collections(data)
    await collections.create(NAME)
    await ingest_documents([document(n) for n in range(count)], NAME, collections)
    snapshots = Snapshots(data, monkeypatch)
    await snapshots.of(lambda: collections.delete_document(NAME, "d0"))
    assert (await collections.manifest(NAME)).state == "complete"
    await collections.aclose()
    before, *later = snapshots.made
    assert len(later) == 3  # BM25, dense, manifest
    left = [f"d{n}" for n in range(1, count)]
    assert await put_right(before) == ["d0", *left]
    for killed in later:
        assert await put_right(killed) == left
        collections = open_collections(killed)
        assert (await collections.manifest(NAME)).state == "complete"
        await collections.aclose()


async def test_a_killed_ingest_shows_no_passage_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    collections = open_collections(data)
    await collections.create(NAME)
    await ingest_documents([document(n) for n in range(3)], NAME, collections)
    snapshots = Snapshots(data, monkeypatch)
    new = [document(1, "was moved to the new harbour"), document(7, "is at the new harbour")]
    await snapshots.of(lambda: ingest_documents(new, NAME, collections))
    await collections.aclose()
    old, all_of_them = ["d0", "d1", "d2"], ["d0", "d1", "d2", "d7"]
    found = [await put_right(killed) for killed in snapshots.made]
    assert found[0] == old
    assert found[-1] == all_of_them
    assert all(each in (old, all_of_them) for each in found)
