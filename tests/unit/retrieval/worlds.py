"""A small corpus and what stands in for parts of retrieval."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from service.core.domain import Passage, ScoredPassage
from service.core.errors import RetrievalFailure, RevelatorError
from service.core.settings import RetrievalSettings
from service.retrieval.base import SearchRequest
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.lifecycle import Collection
from service.retrieval.collections.sample import Sample
from service.retrieval.embedding.contract import Embedder, Vector
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.stores.base import VectorStore
from tests.support.retrieval import FakeCollection, FakeCollections, fake_manifest

CORPUS: list[dict[str, Any]] = [
    {"id": "norma", "title": "Norma", "text": "Norma is an opera by Vincenzo Bellini.",
     "kind": "work", "year": 1831, "tags": ["opera", "italian"]},
    {"id": "bellini", "title": "Vincenzo Bellini",
     "text": "Vincenzo Bellini was a composer, who was born in Catania.",
     "kind": "person", "year": 1801},
    {"id": "tosca", "title": "Tosca", "text": "Tosca is an opera by Giacomo Puccini.",
     "kind": "work", "year": 1900, "tags": ["opera"], "staged": True},
    {"id": "catania", "title": "Catania", "text": "Catania is a city in Sicily.", "kind": "place"},
    {"id": "etna", "title": "Etna", "text": "Etna is a volcano near Catania in Sicily.",
     "kind": "place", "year": None},
]  # fmt: skip

SETTINGS = RetrievalSettings(embedding_model="hashing", timeout_s=5.0)


class CountingEmbedder(HashingEmbedder):
    """Counts passages; fails or blocks when told to."""

    def __init__(self) -> None:
        self.passages = 0
        self.fail_after: int | None = None
        self.failure: RevelatorError | None = None
        self.delay_s = 0.0
        self.queries: list[list[str]] = []

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        self.queries.append(list(texts))
        await anyio.sleep(self.delay_s)
        if self.failure:
            raise self.failure
        return await super().embed_queries(texts)

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        await anyio.lowlevel.checkpoint()
        if self.fail_after is not None and self.passages >= self.fail_after:
            raise RevelatorError("the embedder broke")
        self.passages += len(texts)
        return await super().embed_passages(texts)


@asynccontextmanager
async def opened(
    data_dir: Path,
    embedder: Embedder | None = None,
    sample: Sample | None = None,
    backends: Backends | None = None,
    **options: Any,
) -> AsyncIterator[Collections]:
    """Collections without a sample, unless one is given."""
    sample = sample or Sample(data_dir / "no-sample")
    collections = Collections(data_dir, embedder or HashingEmbedder(), sample, backends, **options)
    try:
        yield collections
    finally:
        await collections.aclose()


async def dense_hashes(store: VectorStore) -> dict[str, str]:
    """Content hash by passage id."""
    found = [each async for page in store.payloads() for each in page]
    return {each["passage_id"]: each["content_hash"] for each in found}


async def contents(collection: Collection) -> tuple[dict[str, str], dict[str, str]]:
    """Content hash by passage id, in the BM25 and in the dense store."""
    records = [record async for page in collection.bm25.records() for record in page]
    bm25 = {record.passage.passage_id: record.content_hash for record in records}
    dense = await dense_hashes(collection.dense)
    assert len(bm25) == len(records) == await collection.bm25.count_passages()
    assert len(dense) == await collection.dense.count_passages()
    return bm25, dense


class FakeStore:
    """A store that answers with fixed ids, late, or not at all."""

    def __init__(self, backend: str, ids: Sequence[str] = ()) -> None:
        self.backend = backend
        self.ids = ids
        self.failure: Exception | None = None
        self.delay_s = 0.0
        self.company: asyncio.Barrier | None = None
        self.queries: list[SearchRequest] = []

    async def search(self, request: SearchRequest) -> list[ScoredPassage]:
        self.queries.append(request)
        await anyio.sleep(self.delay_s)
        if self.company:
            await self.company.wait()
        if self.failure:
            raise self.failure
        return [
            ScoredPassage(Passage(passage_id, passage_id.title(), "text"), rank, 1 / rank)
            for rank, passage_id in enumerate(self.ids[: request.top_k], 1)
        ]

    def breaks(self) -> None:
        self.failure = RetrievalFailure(f"{self.backend} broke")


def collection_of(
    bm25: FakeStore, dense: FakeStore, *, incomplete: bool = False
) -> FakeCollections:
    """One collection `c` of two fake stores."""
    manifest = fake_manifest("c", ["kind", "year"])
    return FakeCollections(FakeCollection(manifest, bm25, dense, incomplete=incomplete))
