"""Several gateways over one Elasticsearch and one Qdrant, none of them with a data directory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import CapturingLogger

from service.core.errors import NotFound, StoreBusy
from service.retrieval.base import SearchRequest
from service.retrieval.collections import elasticsearch, lifecycle
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.documents import Document
from service.retrieval.search.hybrid import HybridRetriever, SnapshotRetriever
from tests.contracts.stores import QUIET, elastic_server, qdrant_server
from tests.support.documents import ingest_documents
from tests.support.live import eventually
from tests.unit.retrieval.worlds import CORPUS, SETTINGS, CountingEmbedder, dense_hashes, opened

pytestmark = QUIET

NAME = "shared"


@pytest.fixture
async def backends(request: pytest.FixtureRequest) -> AsyncIterator[Backends]:
    made = Backends(elastic_server(request), qdrant_server(request, "gRPC"), patience_s=60.0)
    await made.drop(NAME)
    yield made
    await made.drop(NAME)
    await made.aclose()


@pytest.fixture
async def gateways(
    tmp_path: Path, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[Collections]]:
    """Each reads what the others write at every question."""
    monkeypatch.setattr(lifecycle, "FRESH_S", 0.0)
    async with AsyncExitStack() as stack:
        made = []
        for number in range(3):
            each = opened(tmp_path / str(number), backends=backends)
            made.append(await stack.enter_async_context(each))
        yield made


async def ids(collections: Collections, query: str) -> list[str]:
    retriever = HybridRetriever(collections, CountingEmbedder(), SETTINGS)
    result = await retriever.search(SearchRequest(query, 9, NAME))
    return sorted(hit.passage.passage_id for hit in result.passages)


async def test_what_one_makes_the_others_find_change_and_lose(gateways: list[Collections]) -> None:
    one, two, three = gateways
    await one.create(NAME, description="of all")
    assert await two.resolve(NAME) == NAME
    await ingest_documents(CORPUS, NAME, two)
    assert "etna" in await ids(one, "Etna volcano")
    assert await three.manifest(NAME) == await two.manifest(NAME) == await one.manifest(NAME)
    await three.delete_document(NAME, "etna")
    assert "etna" not in await ids(two, "Etna volcano")
    assert (await one.manifest(NAME)).documents == 4
    await one.delete(NAME)
    assert NAME not in await two.names()
    for each in (one, two, three):
        with pytest.raises(NotFound):
            await each.manifest(NAME)


async def test_all_write_at_once(gateways: list[Collections]) -> None:
    """Also of those that make the collection, and of one document, one comes after the other."""
    documents = [{"id": f"d{n}", "text": f"Document {n} of many."} for n in range(30)]

    async def write(collections: Collections, own: list[dict[str, str]]) -> None:
        await collections.create(NAME)
        for document in own:
            await ingest_documents([document, {**document, "id": "same"}], NAME, collections)

    async with anyio.create_task_group() as group:
        for number, each in enumerate(gateways):
            group.start_soon(write, each, documents[number::3])
    manifest = await gateways[0].manifest(NAME)
    assert (manifest.state, manifest.documents, manifest.passages) == ("complete", 31, 31)
    assert {(await each.manifest(NAME)).content_hash for each in gateways} == {
        manifest.content_hash
    }
    collection = await gateways[0].get(NAME)
    stored = await dense_hashes(collection.dense)
    records = [record async for page in collection.bm25.records() for record in page]
    assert {each.passage.passage_id: each.content_hash for each in records} == stored


async def test_the_others_follow_a_reindex(gateways: list[Collections]) -> None:
    """A question that runs elsewhere finishes on the old generation, which stays that long."""
    one, two, _ = gateways
    await one.create(NAME)
    await ingest_documents(CORPUS, NAME, one)
    retriever = HybridRetriever(two, CountingEmbedder(), SETTINGS)
    async with SnapshotRetriever(retriever) as held:
        request = SearchRequest("volcano", 9, NAME)
        assert "etna" in {hit.passage.passage_id for hit in (await held.search(request)).passages}
        async with one.replacing(NAME) as writer:
            await writer.write([Document("hekla", "Hekla", "Hekla is a volcano in Iceland.")])
        assert await ids(one, "volcano") == await ids(two, "volcano") == ["hekla"]
        assert "etna" in {hit.passage.passage_id for hit in (await held.search(request)).passages}
    manifest = await two.manifest(NAME)
    assert (manifest.generation, list(manifest.leftovers)) == (2, [1])


async def test_a_claim_that_was_lost_ends_the_work_under_it(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was frozen for longer than a claim lasts must not go on writing."""
    monkeypatch.setattr(elasticsearch, "CLAIM_S", 0.0)
    one, two = (backends.manifests(tmp_path / name) for name in ("one", "two"))
    monkeypatch.setattr(elasticsearch, "RENEW_S", 0.05)

    async def frozen() -> None:
        async with one.claim(NAME):
            async with two.claim(NAME):
                pass
            with anyio.fail_after(20):
                await anyio.sleep_forever()

    with pytest.raises(StoreBusy, match="another gateway has taken over"):
        await frozen()


async def test_a_claim_that_is_renewed_while_it_is_given_back_is_free(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (backends.manifests(tmp_path / name) for name in ("one", "two"))
    monkeypatch.setattr(elasticsearch, "RENEW_S", 0.5)
    put = one._put

    async def slow(*given: Any) -> Any:
        version = await put(*given)
        await anyio.sleep(0.3)
        return version

    async with one.claim(NAME):
        monkeypatch.setattr(one, "_put", slow)
        await anyio.sleep(0.6)
    assert not await two.claimed(NAME)


@pytest.mark.parametrize("way", ["its scope", "its task"])
async def test_a_claim_whose_taker_leaves_keeps_nobody_out(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    one, two = (backends.manifests(tmp_path / name) for name in ("one", "two"))
    put, written = one._put, anyio.Event()

    async def slow(*given: Any) -> Any:
        version = await put(*given)
        written.set()
        await anyio.sleep(0.3)
        return version

    monkeypatch.setattr(one, "_put", slow)

    async def take() -> None:
        async with one.claim(NAME):
            pass

    if way == "its scope":
        async with anyio.create_task_group() as group:
            group.start_soon(take)
            await written.wait()
            group.cancel_scope.cancel()
        assert not await two.claimed(NAME)
    else:
        task = asyncio.create_task(take())
        await written.wait()
        task.cancel()
        await asyncio.wait({task})
    with anyio.fail_after(elasticsearch.CLAIM_S - 5):  # not once it has run out
        await take()
    assert not await two.claimed(NAME)


async def test_a_claim_is_waited_for(
    backends: Backends,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a short time by requests; by commands for longer, which is logged."""
    one, command = (backends.manifests(tmp_path / name) for name in ("one", "command"))
    hasty = Backends(elastic_server(request))
    two = hasty.manifests(tmp_path / "two")
    async with one.claim(NAME):
        assert await two.claimed(NAME)
        assert not await one.claimed(NAME)
        since = time.monotonic()
        with pytest.raises(StoreBusy, match=r"another gateway has been writing.*send this") as busy:
            async with two.claim(NAME):
                pass
        assert 5 < time.monotonic() - since < 30  # not as long as a command, a minute
        assert (busy.value.status, busy.value.retry_after) == (503, 5)

    async def write() -> None:
        async with command.claim(NAME):
            pass

    told = CapturingLogger()
    monkeypatch.setattr(elasticsearch, "_log", told)
    async with anyio.create_task_group() as group, one.claim(NAME):
        group.start_soon(write)
        await eventually(lambda: told.calls)
    assert [(call.args[0], call.kwargs["at_most_s"]) for call in told.calls] == [
        ("waiting for another writer", 60.0)
    ]
    assert not await two.claimed(NAME)
    async with two.claim(NAME):
        pass
    await hasty.aclose()
