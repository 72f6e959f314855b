"""Retrieval that finds what a test names. The rest of it is the service's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from service.core.domain import ScoredPassage
from service.core.locks import acquire
from service.core.settings import RetrievalSettings, Settings
from service.engines.base import Generator
from service.retrieval.base import Retriever, SearchRequest, SearchResult, SearchStore
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.lifecycle import Collection
from service.retrieval.collections.manifest import Manifest
from service.retrieval.collections.sample import Sample
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.factory import Retrieval
from service.retrieval.search.hybrid import HybridRetriever
from service.runtime import Runtime, open_runtime
from tests.support.asking import ScriptedRetriever


class FakeCollection:
    """What a search uses of an open collection."""

    def __init__(
        self,
        manifest: Manifest,
        bm25: SearchStore | None = None,
        dense: SearchStore | None = None,
        *,
        incomplete: bool = False,
    ) -> None:
        self.manifest, self.bm25, self.dense = manifest, bm25, dense
        self.incomplete = incomplete

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[None]:
        yield

    async def held(self, hits: Sequence[ScoredPassage]) -> Sequence[ScoredPassage]:
        return hits


class FakeCollections(Collections):
    """One collection, which is open and of which nothing is stored."""

    def __init__(self, only: FakeCollection, folder: Path = Path("nowhere")) -> None:
        super().__init__(folder, HashingEmbedder(), Sample(folder / "no-sample"))
        self.only = only

    async def names(self) -> list[str]:
        return [self.only.manifest.name]

    async def manifest(self, name: str) -> Manifest:
        return (await self.get(name)).manifest

    async def get(self, name: str) -> Collection:
        await self.resolve(name)
        return self.only  # type: ignore[return-value]


def fake_manifest(name: str, fields: Sequence[str] = ()) -> Manifest:
    embedding: EmbeddingContract = HashingEmbedder.contract
    return Manifest(name=name, embedding=embedding).with_fields(fields)


class Searching(HybridRetriever):
    """Searches what is lent with `retriever`."""

    def __init__(self, collections: Collections, retriever: Retriever) -> None:
        super().__init__(collections, HashingEmbedder(), RetrievalSettings())
        self.retriever = retriever

    async def search_in(self, stores: Collection, request: SearchRequest) -> SearchResult:
        return await self.retriever.search(request)


@asynccontextmanager
async def scripted_retrieval(
    retriever: Retriever, name: str = "sample"
) -> AsyncIterator[Retrieval]:
    """Retrieval with one collection, which `retriever` searches."""
    fields: set[str] = set()
    if isinstance(retriever, ScriptedRetriever):
        given = [hits for hits in retriever.hits.values() if not isinstance(hits, Exception)]
        fields = {field for hits in given for passage in hits for field in passage.metadata}
    only = FakeCollection(fake_manifest(name, sorted(fields)))
    async with anyio.TemporaryDirectory() as folder:
        with await anyio.to_thread.run_sync(acquire, Path(folder)) as directory:
            collections = FakeCollections(only, Path(folder))
            searching = Searching(collections, retriever)
            yield Retrieval(directory, HashingEmbedder(), collections, searching)
            await searching.aclose()


@asynccontextmanager
async def open_scripted(
    settings: Settings,
    *,
    engines: Mapping[str, Generator] | None = None,
    retriever: Retriever | None = None,
) -> AsyncIterator[Runtime]:
    """Open what the settings name, with `retriever` in place of stores, if it is given."""
    async with AsyncExitStack() as stack:
        retrieval = None
        if retriever is not None:
            retrieval = await stack.enter_async_context(scripted_retrieval(retriever))
        opening = open_runtime(settings, engines=engines, retrieval=retrieval)
        yield await stack.enter_async_context(opening)
