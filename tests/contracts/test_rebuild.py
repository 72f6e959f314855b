"""What a server has lost of a collection is found, said, and made again, on every pair of stores
that has a server."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from service.core.errors import InvalidRequest, RevelatorError
from service.retrieval.base import SearchRequest, SideName
from service.retrieval.collections import consistency
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.documents import PassageRecord, parse_document, record_of
from service.retrieval.embedding.contract import Vector
from service.retrieval.reports import CollectionReport
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.stores import qdrant_edge_store, qdrant_store
from tests.contracts.stores import QUIET, WORLDS
from tests.contracts.test_writer import LONG
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import CORPUS, SETTINGS, CountingEmbedder, contents, opened

pytestmark = QUIET

NAME = "lost"
DOCUMENTS = [*CORPUS, {"id": "long", "title": "Long", "text": LONG, "kind": "long"}]
# A pair of stores, and which side of it is lost.
LOSSES: list[tuple[str, SideName]] = [
    ("tantivy and Qdrant in memory", "dense"),
    ("tantivy and Qdrant by REST", "dense"),
    ("Elasticsearch and Qdrant by gRPC", "dense"),
    ("Elasticsearch and Qdrant by gRPC", "bm25"),
    ("Elasticsearch and qdrant-edge", "bm25"),
]


class World:
    def __init__(self, data: Path, backends: Backends, side: SideName) -> None:
        self.data, self.backends, self.side = data, backends, side

    async def lose(self, collections: Collections) -> None:
        """As an operator's DELETE, or a fresh volume."""
        manifest = await collections.manifest(NAME)
        await self.backends.drop(NAME, manifest.generation, [self.side])


@pytest.fixture(params=LOSSES, ids=" without ".join)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    name, side = request.param
    backends = WORLDS[name](request)
    await backends.drop(NAME)
    yield World(tmp_path, backends, side)
    await backends.drop(NAME)
    await backends.aclose()


async def missing(collections: Collections) -> tuple[str, ...]:
    retriever = HybridRetriever(collections, CountingEmbedder(), SETTINGS)
    found = await retriever.search(SearchRequest("volcano near Catania", 2, NAME))
    assert found.passages[0].passage.passage_id == "etna"
    return found.missing


async def filled(collections: Collections) -> int:
    """Passages."""
    await collections.create(NAME)
    await ingest_documents(DOCUMENTS, NAME, collections)
    return (await collections.manifest(NAME)).passages


async def is_whole(collections: Collections) -> bool:
    bm25, dense = await contents(await collections.get(NAME))
    assert (await collections.check(NAME)).findings == []
    return bm25 == dense


async def test_check_says_what_is_lost_and_repair_makes_it_again(world: World) -> None:
    async with opened(world.data, backends=world.backends) as collections:
        passages = await filled(collections)
        before = await collections.manifest(NAME)
        await world.lose(collections)
        (lost,) = [each for each in (await collections.check(NAME)).findings if each.kind == "lost"]
        assert "--repair" in lost.detail
        assert lost.count == passages
        assert world.side in await missing(collections)
    embedder = CountingEmbedder()
    async with opened(world.data, embedder, backends=world.backends) as collections:
        report = await collections.check(NAME, repair=True)
        assert report.left == []
        assert (report.passages, report.vectors) == (passages, passages)
        assert embedder.passages == (passages if world.side == "dense" else 0)
        assert await collections.manifest(NAME) == before
        assert await is_whole(collections)
        assert await missing(collections) == ()


async def test_an_ingest_calls_nothing_unchanged_that_was_lost(world: World) -> None:
    embedder = CountingEmbedder()
    async with opened(world.data, embedder, backends=world.backends) as collections:
        passages = await filled(collections)
        before = await collections.manifest(NAME)
        await world.lose(collections)
        embedder.passages = 0
        report = await ingest_documents(DOCUMENTS[:2], NAME, collections)
        if world.side == "dense":
            assert (report["indexed"], report["unchanged"]) == (2, 0)
            assert embedder.passages == passages
        else:  # BM25 was restored from what stands beside the vectors, before anything was compared
            assert (report["indexed"], report["unchanged"]) == (0, 2)
            assert embedder.passages == 0
        assert await collections.manifest(NAME) == before
        assert await is_whole(collections)


async def test_a_document_is_deleted_from_what_was_lost(world: World) -> None:
    async with opened(world.data, backends=world.backends) as collections:
        passages = await filled(collections)
        await world.lose(collections)
        await collections.delete_document(NAME, "etna")
        assert (await collections.manifest(NAME)).passages == passages - 1
        assert await is_whole(collections)


async def test_a_replacement_needs_nothing_of_what_was_lost(world: World) -> None:
    async with opened(world.data, backends=world.backends) as collections:
        await filled(collections)
        await world.lose(collections)
        async with collections.replacing(NAME) as writer:
            await writer.write([parse_document(each) for each in CORPUS])
        assert (await collections.manifest(NAME)).documents == len(CORPUS)
        assert await is_whole(collections)
        with pytest.raises(InvalidRequest, match="is unchanged"):
            async with collections.replacing(NAME):
                pass


async def test_a_repair_that_broke_off_is_run_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BM25's index is in place with every passage or not at all; vectors that were made stay."""
    embedder = CountingEmbedder()
    async with opened(world.data, embedder, backends=world.backends) as collections:
        passages = await filled(collections)
        before = await collections.manifest(NAME)
        await world.lose(collections)
        embedder.passages, embedder.fail_after = 0, 0
        with monkeypatch.context() as patch:
            for store in (qdrant_store, qdrant_edge_store):
                patch.setattr(store, "PAGE", 2)
            patch.setattr(consistency, "record_of", _broken_after(3))
            with pytest.raises(RevelatorError, match="broke"):
                await collections.check(NAME, repair=True)
        assert world.side == "dense" or world.side in await missing(collections)
        embedder.fail_after = None
    async with opened(world.data, embedder, backends=world.backends) as collections:
        assert (await collections.check(NAME, repair=True)).left == []
        assert embedder.passages == (passages if world.side == "dense" else 0)
        assert await collections.manifest(NAME) == before
        assert await is_whole(collections)


def _broken_after(count: int) -> Callable[[Any], PassageRecord]:
    left = iter(range(count))

    def broken(payload: Any) -> PassageRecord:
        if next(left, None) is None:
            raise RevelatorError("it broke off")
        return record_of(payload)

    return broken


class Halt:
    """Where a repair stands until it may go on."""

    def __init__(self) -> None:
        self.reached, self.over = threading.Event(), threading.Event()

    def stand(self) -> None:
        self.reached.set()
        self.over.wait(60)


class HaltingEmbedder(CountingEmbedder):
    def __init__(self, halt: Halt) -> None:
        super().__init__()
        self._halt = halt

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        await anyio.to_thread.run_sync(self._halt.stand)
        return await super().embed_passages(texts)


async def test_questions_are_answered_while_it_is_repaired(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the side that is left, and the answers say that something is missing."""
    async with opened(world.data, backends=world.backends) as collections:
        await filled(collections)
        await world.lose(collections)
    halt, reports = Halt(), list[CollectionReport]()

    def halting(payload: Any) -> PassageRecord:
        halt.stand()
        return record_of(payload)

    monkeypatch.setattr(consistency, "record_of", halting)
    async with opened(world.data, HaltingEmbedder(halt), backends=world.backends) as collections:

        async def repair() -> None:
            reports.append(await collections.check(NAME, repair=True))

        async with anyio.create_task_group() as group:
            group.start_soon(repair)
            assert await anyio.to_thread.run_sync(halt.reached.wait, 60)
            try:
                told = await missing(collections)
            finally:
                halt.over.set()
        assert told == (("index-incomplete",) if world.side == "dense" else ("bm25",))
        assert reports[0].left == []
        assert await missing(collections) == ()


async def test_it_is_deleted(world: World) -> None:
    async with opened(world.data, backends=world.backends) as collections:
        await filled(collections)
        await world.lose(collections)
        await collections.delete(NAME)
        assert NAME not in await collections.names()
        assert await filled(collections)
        assert await is_whole(collections)
