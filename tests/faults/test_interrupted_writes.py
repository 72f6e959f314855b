"""Writes, openings and repairs that a kill interrupts at each of their durable steps: the data
directory as it is before each step is opened by a new process, so to say, which puts it right."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from service.core import files
from service.core.errors import BackendUnavailable
from service.core.settings import RetrievalSettings
from service.retrieval.base import EVERYTHING, SearchRequest
from service.retrieval.collections import backends, catalog, manifest
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.sample import Sample
from service.retrieval.documents import parse_document
from service.retrieval.embedding.contract import BATCH, Vector
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.ingest import pipeline
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.stores import digests
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore
from service.retrieval.stores.tantivy_store import TantivyStore
from tests.faults.killing import NAME, documents, run, state
from tests.faults.siege.world import copied
from tests.support.documents import ingest_documents
from tests.support.live import eventually
from tests.unit.retrieval.worlds import CountingEmbedder

COUNT = 48  # documents of a file; more than one batch, in each of which more is embedded than once
STEPS = (
    (QdrantEdgeStore, "upsert"),
    (QdrantEdgeStore, "delete"),
    (TantivyStore, "replace"),
    (manifest, "save_whole"),
)
OPENING = (
    (backends, "set_aside"),
    (TantivyStore, "__init__"),
    (QdrantEdgeStore, "__init__"),
    (backends, "seal"),
    (digests, "write_whole"),
    (files.shutil, "rmtree"),
)


def document(number: int, text: str = "stands in the old town") -> dict[str, str]:
    title = f"Tower {number}"
    return {"id": f"d{number}", "title": title, "text": f"{title} {text}."}


class Snapshots:
    """Copies of a data directory, each made before a durable step, and how many passages the
    `embedder` had embedded then."""

    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._data = data
        self._monkeypatch = monkeypatch
        self.embedder = CountingEmbedder()
        self.made: list[Path] = []
        self.embedded: list[int] = []
        self._lock = threading.Lock()  # some steps are made in threads

    def _copying(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def after_a_copy(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                target = self._data.with_name(f"killed-{len(self.made)}")
                self.made.append(copied(self._data, target))
                self.embedded.append(self.embedder.passages)
            return step(*arguments, **named)

        return after_a_copy

    async def of(self, work: Callable[[], Awaitable[object]], steps: Any = STEPS) -> None:
        with self._monkeypatch.context() as patched:
            for owner, name in steps:
                patched.setattr(owner, name, self._copying(getattr(owner, name)))
            await work()


class Broken(HashingEmbedder):
    """Fails until it is `whole`."""

    whole = False
    asked = 0

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        self.asked += 1
        if not self.whole:
            raise BackendUnavailable("the embedding server does not answer")
        return await super().embed_passages(texts)


class Opened(Collections):
    """Puts nothing right until `proceed`."""

    proceed: anyio.Event | None = None

    async def _put_right(self, name: str) -> None:
        if self.proceed is not None:
            await self.proceed.wait()
        await super()._put_right(name)


def open_collections(data: Path, embedder: HashingEmbedder | None = None) -> Opened:
    return Opened(data, embedder or HashingEmbedder(), Sample(data / "no-sample"))


async def only_acknowledged_texts(collections: Collections) -> None:
    """What dense search returns is stored in BM25, with the same text."""
    retriever = HybridRetriever(collections, HashingEmbedder(), RetrievalSettings())
    for words in ("tower", "old town", "new harbour"):
        found = await retriever.search(SearchRequest(words, 5, NAME, "dense"))
        assert len({hit.rank for hit in found.passages}) == len(found.passages)
        for hit in found.passages:
            [record] = await collections.document(NAME, hit.passage.passage_id)
            assert record.passage.text == hit.passage.text


async def put_right(
    data: Path, *, whole: bool = False, lost: bool = False, embeds: int | None = None
) -> list[str]:
    """Open and search, unless a side is `lost`, wait until the collection is put right, and return
    the ids that are left. After the kill of work on a `whole` collection nothing is missing. At
    most `embeds` passages are embedded."""
    embedder = CountingEmbedder()
    collections = open_collections(data, embedder)
    collections.proceed = anyio.Event()
    if not lost:
        await only_acknowledged_texts(collections)
    collections.proceed.set()
    collection = await collections.get(NAME)
    await eventually(lambda: not collection.manifest.interrupted, 60)
    await only_acknowledged_texts(collections)
    report = await collections.check(NAME)
    assert {each.kind for each in report.findings} <= (set() if whole else {"building"})
    assert collection.manifest.documents == report.documents
    assert not collection.manifest.deleting
    assert not collection.manifest.leftovers
    generations = [each.name for each in (data / "collections" / NAME).iterdir() if each.is_dir()]
    assert generations == [str(collection.manifest.generation)]
    assert embeds is None or embedder.passages <= embeds
    ids = sorted([each.document_id async for page in collection.bm25.records() for each in page])
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
        assert await put_right(killed, whole=True) == left


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


async def test_the_next_ingest_embeds_what_a_kill_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most a batch is embedded twice, and nothing shows that there was a kill."""
    monkeypatch.setattr(pipeline, "BATCH_DOCUMENTS", COUNT // 2)
    data, file = tmp_path / "data", documents(tmp_path / "corpus.jsonl", COUNT)
    snapshots = Snapshots(data, monkeypatch)
    await snapshots.of(lambda: run(data, file, snapshots.embedder))
    whole = await state(data)
    assert len(whole.dense) > 2 * BATCH
    for killed, embedded in list(zip(snapshots.made, snapshots.embedded, strict=True))[1:]:
        before, embedder = await state(killed), CountingEmbedder()
        await run(killed, file, embedder)
        assert embedder.passages <= len(whole.dense) - len(before.dense)
        assert embedded + embedder.passages <= len(whole.dense) + BATCH
        assert await state(killed) == whole


async def three_documents(data: Path) -> list[str]:
    collections = open_collections(data)
    await collections.create(NAME)
    await ingest_documents([document(n) for n in range(3)], NAME, collections)
    await collections.aclose()
    return ["d0", "d1", "d2"]


async def test_a_collection_whose_opening_was_killed_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first opening compacts files of the shard, which is no damage."""
    data = tmp_path / "data"
    ids = await three_documents(data)
    collections, snapshots = open_collections(data), Snapshots(data, monkeypatch)
    await snapshots.of(lambda: collections.get(NAME), OPENING)
    await collections.aclose()
    assert len(snapshots.made) >= 5
    for killed in snapshots.made:
        assert await put_right(killed, whole=True) == ids


async def killed_repair(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the data directory after the kill of a repair that was to embed a passage."""
    await three_documents(data)
    collections, snapshots = open_collections(data), Snapshots(data, monkeypatch)
    await (await collections.get(NAME)).dense.delete(["d0"])
    await snapshots.of(lambda: collections.check(NAME, repair=True))
    await collections.aclose()
    return snapshots.made[1]


async def used_until_put_right(collections: Collections) -> None:
    started = time.monotonic()
    while (await collections.get(NAME)).manifest.interrupted:
        assert time.monotonic() - started < 60
        await anyio.sleep(0.005)


async def test_what_failed_to_be_put_right_is_tried_again_when_it_is_used_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "INTERVAL_S", 0.3)
    embedder = Broken()
    collections = open_collections(await killed_repair(tmp_path / "data", monkeypatch), embedder)
    started = time.monotonic()
    while embedder.asked < 3:
        assert time.monotonic() - started < 60
        collection = await collections.get(NAME)
        await anyio.sleep(0.005)
    assert embedder.asked <= 1 + (time.monotonic() - started) / 0.3
    lock = collections._life.lock(NAME)
    await eventually(lambda: not lock.locked(), 60)
    assert "a repair was interrupted" in (await collections.problems())[NAME]
    assert collection.incomplete
    embedder.whole = True
    await used_until_put_right(collections)
    assert not collection.incomplete
    assert (await collections.info(NAME)).state == "complete"
    await anyio.sleep(0.3)
    assert await collections.problems() == {}
    await collections.aclose()


async def test_what_another_gateway_is_writing_is_left_to_it_and_put_right_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "INTERVAL_S", 0.1)
    embedder, asked = Broken(), list[str]()
    embedder.whole = True
    collections = open_collections(await killed_repair(tmp_path / "data", monkeypatch), embedder)

    async def claimed(name: str) -> bool:
        asked.append(name)
        assert embedder.asked == 0
        return len(asked) < 3

    monkeypatch.setattr(collections._life.manifests, "claimed", claimed)
    await used_until_put_right(collections)
    assert (len(asked), embedder.asked) == (3, 1)
    await collections.aclose()


async def test_a_failure_here_is_left_to_the_next_run_also_after_something_was_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses the vectors that were written, which putting right would delete."""
    embedder = Broken()
    embedder.whole = True
    collections = open_collections(await killed_repair(tmp_path / "data", monkeypatch), embedder)
    await collections.get(NAME)
    await eventually(lambda: NAME not in collections._righting, 60)
    embedder.whole = False
    with pytest.raises(BackendUnavailable):
        await ingest_documents([document(8)], NAME, collections)
    assert (await collections.get(NAME)).manifest.state == "building"
    assert NAME not in collections._righting
    await collections.aclose()


async def test_documents_that_a_killed_ingest_has_restricted_are_never_counted_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the first that have `access`; the next ingest has none."""
    data = tmp_path / "data"
    await three_documents(data)
    collections, snapshots = open_collections(data), Snapshots(data, monkeypatch)
    hidden = [document(n) | {"access": "board"} for n in range(5, 7)]
    await snapshots.of(lambda: ingest_documents(hidden, NAME, collections))
    await collections.aclose()
    stored = set[int]()
    for killed in snapshots.made:
        collections = open_collections(killed)
        collections.proceed = anyio.Event()
        async with collections.writing(NAME) as writer:
            await writer.write([parse_document(document(9))])
            await writer._settle()
            stored.add(await (await collections.get(NAME)).bm25.count_passages())
            info = await collections.info(NAME)
            assert (info.documents, info.passages) == (4, 4)
            everything = await collections.info(NAME, EVERYTHING)
            assert everything.documents in stored
        assert (await collections.info(NAME)).documents == 4
        await collections.aclose()
    assert stored == {4, 6}


@pytest.mark.parametrize("lost", ["nothing", "bm25", "dense"])
async def test_a_killed_repair_is_completed_at_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    data = tmp_path / "data"
    ids = await three_documents(data)
    if lost != "nothing":
        files.discard(data / "collections" / NAME / "1" / lost)
    collections, snapshots = open_collections(data), Snapshots(data, monkeypatch)
    collection = await collections.get(NAME)
    if lost == "nothing":
        await collection.dense.delete(["d0", "d2"])
    repair = lambda: collections.check(NAME, repair=True)  # noqa: E731
    await snapshots.of(repair, (*STEPS, *OPENING))
    await collections.aclose()
    later = snapshots.made[1:]
    assert len(later) >= 3
    for killed in later:
        embeds = 2 if lost == "nothing" else None
        assert await put_right(killed, whole=True, lost=lost != "nothing", embeds=embeds) == ids
        assert not list(killed.rglob(".deleted-*"))


async def test_a_killed_replacement_leaves_the_old_documents_or_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    old = await three_documents(data)
    collections, snapshots = open_collections(data), Snapshots(data, monkeypatch)

    async def replace() -> None:
        async with collections.replacing(NAME) as writer:
            await writer.write([parse_document(document(n)) for n in range(7, 9)])

    await snapshots.of(replace, (*STEPS, *OPENING))
    await collections.aclose()
    found = [await put_right(killed, whole=True) for killed in snapshots.made]
    assert found[0] == old
    assert found[-1] == ["d7", "d8"]
    assert all(each in (old, ["d7", "d8"]) for each in found)
