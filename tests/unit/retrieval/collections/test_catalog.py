from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import pytest

from service.cli.upkeep import lines_of
from service.core.errors import (
    BackendUnavailable,
    InvalidRequest,
    NotFound,
    StoreError,
    UnknownCollection,
)
from service.retrieval.base import SearchRequest
from service.retrieval.collections import catalog, lifecycle
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections, quick_problem
from service.retrieval.collections.lifecycle import Collection
from service.retrieval.collections.manifest import Manifest
from service.retrieval.collections.sample import Sample
from service.retrieval.documents import Document
from service.retrieval.embedding.contract import HASHING
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.reports import CollectionReport, Finding
from service.retrieval.stores import digests
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore
from service.retrieval.stores.qdrant_server import QdrantServer
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import CORPUS, CountingEmbedder, opened


async def test_collections_are_told_while_the_dense_store_hangs(tmp_path: Path) -> None:
    """Also the sample, which is still to be made there."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        backends = Backends(None, QdrantServer(f"http://127.0.0.1:{port}", 30.0, 0))
        collections = Collections(tmp_path, CountingEmbedder(), Sample.shipped(), backends)
        with anyio.fail_after(10):
            sample = await collections.manifest("sample")
        assert (sample.name, sample.state) == ("sample", "complete")
        assert sample.passages >= sample.documents > 0
        await collections.aclose()
        await backends.aclose()


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "-a", "a" * 64, "a b", "é", "a\n"])
async def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path) as collections:
        with pytest.raises(InvalidRequest, match="is not valid: use"):
            await collections.create(name)
        with pytest.raises(NotFound):
            await collections.get(name)


async def test_requests_are_checked(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        await collections.create("default", metadata_fields=["kind", "year"])
        assert await collections.check_request(None, {"kind": ("work",)}) == "default"
        assert await collections.check_request("default") == "default"
        with pytest.raises(NotFound, match=r"'nowhere'.*default"):
            await collections.check_request("nowhere")
        with pytest.raises(InvalidRequest, match=r"'colour'.*kind, year"):
            await collections.check_request(None, {"colour": ("red",)})

        def refuse(name: str) -> None:
            raise StoreError(f"not {name}")

        for name, told in (("nowhere", "not nowhere"), (None, "not default")):
            with pytest.raises(StoreError, match=told):
                await collections.check_request(name, {"colour": ("red",)}, refuse)


async def test_no_caller_may_name_a_generation(tmp_path: Path) -> None:
    """It would get round the lock of the only writer, and the protection of the sample."""
    async with opened(tmp_path, sample=Sample.shipped()) as collections:
        await collections.create("c")
        await collections.get("sample")
        for name in ("c@1", "c@", "sample@1", "sample@"):
            for call in (
                collections.resolve(name),
                collections.get(name),
                collections.manifest(name),
                collections.check_request(name, {"f": ("x",)}),
                collections.document(name, "d"),
                collections.delete_document(name, "d"),
                collections.heads(name, "", 9),
                collections.check(name),
                collections.delete(name),
            ):
                with pytest.raises(UnknownCollection, match="existing collections: c, sample"):
                    await call
            for change in (collections.writing, collections.replacing, collections.lend):
                with pytest.raises(UnknownCollection):
                    async with change(name):
                        pass
        assert await collections.names() == ["c", "sample"]


async def test_who_comes_during_a_deletion_is_told_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        for name in ("c", "other"):
            await collections.create(name)
        writing, written = anyio.Event(), anyio.Event()

        async def write() -> None:
            async with collections.writing("c"):
                writing.set()
                await written.wait()

        async with anyio.create_task_group() as group:
            group.start_soon(write)
            await writing.wait()
            group.start_soon(collections.delete, "c")
            await anyio.sleep(0.02)
            with anyio.fail_after(10):  # the others do not wait for it
                assert await collections.resolve("other") == "other"
                assert await collections.manifest("other")
            with pytest.raises(NotFound):
                await collections.get("c")
            written.set()


async def test_a_replacement_that_is_cancelled_while_it_switches_has_switched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the manifest on there is no way back: a cancellation must not delete what it names."""
    switching = anyio.Event()

    async def publish(*_: object) -> None:
        switching.set()
        await anyio.sleep(0.05)

    async with opened(tmp_path) as collections:
        await collections.create("c")
        await ingest_documents(CORPUS, "c", collections)
        monkeypatch.setattr(collections._backends, "publish", publish)

        async def replace() -> None:
            async with collections.replacing("c") as writer:
                await writer.write([Document("hekla", "", "Hekla is a volcano.")])

        task = asyncio.create_task(replace())
        await switching.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [head.document_id for head in await collections.heads("c", "", 9)] == ["hekla"]
    async with opened(tmp_path) as collections:
        assert [head.document_id for head in await collections.heads("c", "", 9)] == ["hekla"]


@asynccontextmanager
async def deleted_during_a_replacement(collections: Collections) -> AsyncIterator[anyio.Event]:
    """A deletion waits for a replacement, which goes on at the event or at the end."""
    replacing, proceed = anyio.Event(), anyio.Event()
    await collections.create("c")
    await ingest_documents(CORPUS, "c", collections)

    async def replace_slowly() -> None:
        async with collections.replacing("c") as writer:
            await writer.write([Document("hekla", "", "Hekla is a volcano.")])
            replacing.set()
            await proceed.wait()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(replace_slowly)
            await replacing.wait()
            group.start_soon(collections.delete, "c")
            await anyio.wait_all_tasks_blocked()
            yield proceed
            proceed.set()


async def test_a_deletion_during_a_replacement_deletes_both_generations(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        async with deleted_during_a_replacement(collections):
            with pytest.raises(NotFound):
                await collections.get("c")
        assert await collections.names() == []
        with pytest.raises(NotFound):
            await collections.get("c")
        assert [*(tmp_path / "collections").iterdir()] == []
        await collections.create("c")
        await ingest_documents(CORPUS, "c", collections)
        assert (await collections.manifest("c")).documents == len(CORPUS)


async def test_a_question_goes_on_while_a_deletion_waits(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        await collections.create("c")
        async with AsyncExitStack() as question:
            stores = await question.enter_async_context(collections.lend("c"))
            async with deleted_during_a_replacement(collections) as proceed:
                for _ in range(2):
                    await collections.problems()  # nor does a round of readiness close it
                    assert len(await stores.bm25.search(SearchRequest("volcano", 5, "c"))) == 1
                    proceed.set()
                    await anyio.sleep(0.05)
                await question.aclose()
        assert await collections.names() == []


async def test_a_writer_ends_before_a_deletion_also_beside_readiness(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        await collections.create("c")
        async with anyio.create_task_group() as group, collections.writing("c") as writer:
            group.start_soon(collections.delete, "c")
            await anyio.wait_all_tasks_blocked()
            await collections.problems()
            await writer.write([Document("hekla", "", "Hekla is a volcano.")])
        assert await collections.names() == []


async def test_what_a_server_could_not_delete_is_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = Backends()
    collections = Collections(tmp_path, CountingEmbedder(), Sample(tmp_path / "none"), backends)
    await collections.create("c")
    await ingest_documents(CORPUS, "c", collections)
    with monkeypatch.context() as patch:
        patch.setattr(backends, "drop", AsyncMock(side_effect=BackendUnavailable("it is down")))
        with pytest.raises(BackendUnavailable):
            await collections.delete("c")
    assert (await collections.manifest("c")).documents == len(CORPUS)
    await collections.delete("c")
    assert await collections.names() == []
    await collections.aclose()


async def test_leftovers_of_a_kill_are_cleared(tmp_path: Path) -> None:
    (tmp_path / "collections" / ".deleted-x-1").mkdir(parents=True)
    (tmp_path / "collections" / "half" / "bm25").mkdir(parents=True)
    async with opened(tmp_path) as collections:
        assert await collections.names() == []
        await collections.create("half")
    assert [path.name for path in (tmp_path / "collections").iterdir()] == ["half"]


async def test_a_damaged_manifest_says_what_to_do(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        await collections.create("c")
    path = tmp_path / "collections" / "c" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 2}))
    async with opened(tmp_path) as collections:
        with pytest.raises(StoreError, match=r"schema_version.*ingest it again"):
            await collections.get("c")
    path.write_text("{")
    async with opened(tmp_path) as collections:
        with pytest.raises(StoreError, match="ingest it again"):
            await collections.get("c")


async def test_damaged_stores_are_a_store_error(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        await collections.create("c")
    (tmp_path / "collections" / "c" / "1" / "bm25" / "meta.json").write_text("{")
    async with opened(tmp_path) as collections:
        with pytest.raises(StoreError, match=r"tantivy failed on the files in .*bm25"):
            await collections.document("c", "etna")


async def test_the_next_file_of_a_log_is_no_part_of_a_collection(tmp_path: Path) -> None:
    """qdrant-edge prepares it in a thread of its own, under a name that it changes then."""
    async with opened(tmp_path) as collections:
        await collections.create("c")
        next_file = tmp_path / "collections" / "c" / "1" / "dense" / "wal" / "tmp-open-9"
        next_file.write_text("prepared")
        await ingest_documents(CORPUS, "c", collections)
        next_file.rename(next_file.with_name("open-9"))
        assert (await collections.check("c")).findings == []


def test_of_a_large_store_the_smaller_files_are_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "BUDGET", 50_000)
    folder = tmp_path / "dense"
    folder.mkdir()
    for name, size in (("small", 10), ("large", 100_000)):
        (folder / name).write_bytes(b"x" * size)
    digests.seal(folder)
    for name in ("small", "large"):
        (folder / name).write_bytes(b"y")
    assert digests.damage(folder) == [folder / "small"]


@pytest.mark.parametrize("way", ["removed", "flipped"])
async def test_a_manifest_that_is_damaged_under_an_open_collection_is_found_and_written_again(
    tmp_path: Path, way: str
) -> None:
    path = tmp_path / "collections" / "c" / "manifest.json"
    async with opened(tmp_path) as collections:
        await collections.create("c")
        await ingest_documents(CORPUS, "c", collections)
        content = path.read_bytes()
        if way == "removed":
            path.unlink()
        else:
            path.write_bytes(re.sub(rb'("passages": ?)5', rb"\g<1>7", content))
        [finding] = (await collections.check("c")).findings
        assert "is missing" in finding.detail or "its checksum differs" in finding.detail
        report = await collections.check("c", repair=True)
        assert (report.done, report.left) == (["manifest written again"], [])
        assert (await collections.check("c")).findings == []
    assert path.read_bytes() == content


async def test_collections_that_are_not_used_are_closed_and_their_number_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.retrieval.collections.lifecycle.MOST_OPEN", 3)
    monkeypatch.setattr("service.retrieval.collections.catalog.MOST_COLLECTIONS", 8)
    async with opened(tmp_path) as collections:
        for number in range(8):
            await collections.create(f"c{number}")
        with pytest.raises(InvalidRequest, match="there are 8 collections, and no more"):
            await collections.create("c8")
        await ingest_documents(CORPUS, "c0", collections)
        async with collections.lend("c0"):
            for number in range(8):
                async with collections.lend(f"c{number}"):
                    pass
            [record] = await collections.document("c0", "etna")
        assert record.passage.title == "Etna"
        maps = await anyio.to_thread.run_sync(Path("/proc/self/maps").read_text)
        opened_now = set(re.findall(r"/collections/(c\d)/1/dense/", maps))
        assert "c0" in opened_now
        assert len(opened_now) <= 3 + 2


async def test_a_collection_that_cannot_be_closed_or_read_hurts_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "IDLE_S", -1.0)
    monkeypatch.setattr(catalog, "INTERVAL_S", 0.0)
    failing = AsyncMock(side_effect=StoreError("the disk is full"))
    async with opened(tmp_path) as collections:
        for name in ("c", "other"):
            await collections.create(name)
        await ingest_documents(CORPUS, "c", collections)
        with monkeypatch.context() as patch:
            patch.setattr(QdrantEdgeStore, "close", failing)
            await collections.get("other")  # which closes the one that is idle
            assert await collections.problems() == {}
        assert failing.await_count >= 2
        assert len(await collections.document("c", "etna")) == 1
    (tmp_path / "collections" / "unreadable" / "manifest.json").mkdir(parents=True)
    async with opened(tmp_path) as collections:
        problems = await collections.problems()
        assert problems["unreadable"].endswith(
            "manifest.json: cannot be read: Is a directory; restore it"
        )


@pytest.mark.parametrize("turns", range(6))
async def test_nobody_waits_for_a_question_that_began_while_its_collection_was_to_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr(lifecycle, "IDLE_S", -1.0)
    monkeypatch.setattr(catalog, "EMBEDDED_TIMEOUT_S", 60.0)
    async with opened(tmp_path) as collections:
        await collections.create("c")
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(collections.problems)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                async with collections.lend("c"):
                    await anyio.sleep(0.05)
                    async with collections.lend("c"):
                        pass


# A round over the collections is bounded, whatever the stores do.


async def test_a_store_that_hangs_holds_up_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "INTERVAL_S", 0.0)
    monkeypatch.setattr(catalog, "EMBEDDED_TIMEOUT_S", 1.0)
    async with opened(tmp_path, HashingEmbedder()) as collections:
        for name in ("a", "b"):
            await collections.create(name)
            await ingest_documents(CORPUS, name, collections)
        frozen, other = await collections.get("a"), await collections.get("b")

        async def none() -> int:
            return 0

        monkeypatch.setattr(frozen.dense, "count_passages", anyio.sleep_forever)
        monkeypatch.setattr(other.dense, "count_passages", none)
        started = time.monotonic()
        assert await collections.problems() == {}
        found = await collections.problems()  # the one after it had its turn
        assert time.monotonic() - started < 15
        assert list(found) == ["b"]


class Closing:
    """A store that takes until `go` to close."""

    def __init__(self) -> None:
        self.go = anyio.Event()
        self.closed = 0

    async def close(self) -> None:
        await self.go.wait()
        self.closed += 1


def collection_of(bm25: Any) -> Collection:
    dense: Any = Closing()
    dense.go.set()
    manifest = Manifest(name="c", embedding=HASHING)
    return Collection(manifest, bm25, dense, Backends(), Path("none"))


def noted(collection: Collection, done: list[int]) -> Callable[[], Any]:
    """Close the collection, and note that its stores are closed now."""

    async def close() -> None:
        await collection.close()
        done.append(collection.bm25.closed)  # type: ignore[attr-defined]

    return close


async def test_whoever_closes_it_goes_on_only_when_it_is_closed() -> None:
    store, done = Closing(), list[int]()
    collection = collection_of(store)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(noted(collection, done))
            await anyio.sleep(0.05)
            assert done == []
            store.go.set()
    await collection.close()
    assert (done, store.closed) == ([1, 1, 1], 1)


async def test_all_who_wait_for_a_loan_learn_of_its_return() -> None:
    store, done = Closing(), list[int]()
    store.go.set()
    collection = collection_of(store)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group, collection.lend():
            for _ in range(3):
                group.start_soon(noted(collection, done))
            await anyio.wait_all_tasks_blocked()
            assert done == []
    assert (done, store.closed) == ([1, 1, 1], 1)


async def test_a_closer_that_gives_up_leaves_it_to_the_next() -> None:
    store = Closing()
    store.go.set()
    collection = collection_of(store)
    async with collection.lend():
        with anyio.move_on_after(0.01):
            await collection.close()
    with anyio.fail_after(10):
        await collection.close()
    assert store.closed == 1


def test_counts_alone_tell_what_is_wrong() -> None:
    manifest = Manifest(name="c", embedding=HASHING, passages=3)
    assert quick_problem(manifest) is None
    told = quick_problem(manifest, True) or ""
    assert "the manifest, tantivy and qdrant_edge count different" in told
    assert "3" not in told  # whoever reads it may not see all of them
    building = manifest.model_copy(update={"state": "building"})
    assert "interrupted" in (quick_problem(building) or "")


def test_what_a_person_reads() -> None:
    report = CollectionReport(collection="c", documents=1, passages=2, vectors=3)
    assert lines_of(report) == [
        "collection c: 1 documents, 2 passages, 3 vectors", "manifest and stores agree",
    ]  # fmt: skip
    report.findings = [
        Finding(kind="surplus", detail="vectors without a passage", count=3, ids=["a", "b"])
    ]
    report.done = ["vectors removed: 3"]
    report.left = [Finding(kind="building", detail="an ingest was cut short")]
    assert lines_of(report)[1:] == [
        "found: vectors without a passage: 3 (a, b, …)",
        "done: vectors removed: 3",
        "left: an ingest was cut short",
    ]
