from __future__ import annotations

import json
from pathlib import Path

import anyio
import anyio.abc
import pytest

from service.core.errors import InvalidRequest, NotFound, StoreError
from service.retrieval.base import SearchRequest, StoreQuery
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections, describe
from service.retrieval.collections.manifest import check_name
from service.retrieval.collections.sample import Sample
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.stores.qdrant_server import QdrantServer
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import CORPUS, SETTINGS, CountingEmbedder, dense_hashes, opened

pytestmark = pytest.mark.anyio


async def test_collections_survive_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        assert await collections.names() == []
        made = await collections.create("c", description="About opera", metadata_fields=["place"])
        await ingest_documents(CORPUS, "c", collections)
        before = await collections.manifest("c")
    assert made.documents == 0
    async with opened(tmp_path) as collections:
        assert await collections.names() == ["c"]
        assert await collections.manifests() == [before]
        assert describe(before)["metadata_fields"] == ("kind", "place", "staged", "tags", "year")
        assert describe(before)["documents"] == 5
        [record] = await collections.document("c", "etna")
        assert record.passage.title == "Etna"
        with pytest.raises(NotFound, match="no document 'nothing'"):
            await collections.document("c", "nothing")


async def test_collections_are_told_while_the_dense_store_hangs(tmp_path: Path) -> None:
    """Also the sample, which is still to be made there."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        backends = Backends(None, QdrantServer(f"http://127.0.0.1:{port}", 30.0, 0))
        collections = Collections(tmp_path, CountingEmbedder(), Sample.shipped(), backends)
        with anyio.fail_after(10):
            (sample,) = await collections.manifests()
        assert (sample.name, sample.state) == ("sample", "complete")
        assert sample.passages >= sample.documents > 0
        await collections.aclose()
        await backends.aclose()


async def test_create_again_changes_what_may_change(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        await collections.create("c", description="old", metadata_fields=["a"])
        changed = await collections.create("c", metadata_fields=["b"])
        assert (changed.description, changed.metadata_fields) == ("old", ("a", "b"))
        assert (await collections.create("c", description="new")).description == "new"
        assert (await collections.create("c", analysis="english")).analysis == "english"
        with pytest.raises(InvalidRequest, match="uses the analysis 'english'"):
            await collections.create("c", analysis="simple")


async def test_simple_analysis_does_not_stem(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        await collections.create("c", analysis="simple")
        await ingest_documents(CORPUS, "c", collections)
        store = (await collections.get("c")).bm25
        assert await store.search(StoreQuery("operas", 3)) == []
        assert len(await store.search(StoreQuery("OPERA", 3))) == 2


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "-a", "a" * 64, "a b", "é", "a\n"])
async def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path) as collections:
        with pytest.raises(InvalidRequest, match="is not valid: use"):
            await collections.create(name)
        with pytest.raises(NotFound):
            await collections.get(name)


def test_names_that_are_fine() -> None:
    assert [check_name(name) for name in ("a", "0-_", "a" * 63)]


async def test_delete_a_document(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        await collections.create("c")
        await ingest_documents(CORPUS, "c", collections)
        await collections.delete_document("c", "etna")
        with pytest.raises(NotFound, match="'etna'"):
            await collections.delete_document("c", "etna")
        collection = await collections.get("c")
        assert "etna" not in dense_hashes(collection.dense)
        assert (collection.manifest.documents, collection.manifest.passages) == (4, 4)
        assert collection.manifest.state == "complete"


async def test_delete_waits_for_searches_and_frees_the_name(tmp_path: Path) -> None:
    embedder = CountingEmbedder()
    async with opened(tmp_path, embedder) as collections:
        await collections.create("c")
        await ingest_documents(CORPUS, "c", collections)
        retriever = HybridRetriever(collections, embedder, SETTINGS)
        embedder.delay_s = 0.1
        found = []

        async def search() -> None:
            found.append(await retriever.search(SearchRequest("opera", 2, "c")))

        async with anyio.create_task_group() as group:
            group.start_soon(search)
            await anyio.sleep(0.02)
            await collections.delete("c")
            assert len(found[0].passages) == 2
        with pytest.raises(NotFound):
            await collections.delete("c")
        await collections.create("c")
        assert (await collections.manifest("c")).documents == 0
    assert [path.name for path in (tmp_path / "collections").iterdir()] == ["c"]


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
                assert await collections.metadata_fields("other") == ()
            with pytest.raises(NotFound):
                await collections.get("c")
            written.set()


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
        with pytest.raises(StoreError, match="BM25 index"):
            await collections.get("c")


async def test_default_comes_before_the_sample(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        with pytest.raises(NotFound):
            await collections.resolve(None)
        await collections.create("default")
        assert await collections.resolve(None) == "default"
        assert await collections.metadata_fields("default") == ()
