"""Queries, passages and vectors that are unusual, on every pair of stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from service.core.errors import InvalidRequest, RevelatorError
from service.retrieval.base import SearchRequest
from service.retrieval.collections.backends import Backends
from service.retrieval.embedding.contract import Vector
from service.retrieval.search.hybrid import HybridRetriever
from tests.contracts.stores import NAME, QUIET
from tests.contracts.test_writer import opened
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import CORPUS, SETTINGS, CountingEmbedder

pytestmark = [pytest.mark.anyio, QUIET]

REPEATED = {"id": "repeated", "title": "", "text": "opera " * 10_000}
GERMAN = [
    {"id": "oper", "title": "Die Oper", "text": "Die Opern wurden in Häusern der Städte gespielt."},
    {"id": "vulkan", "title": "Vulkane", "text": "Der Vulkan ist bei Catania."},
]


async def test_odd_queries_and_passages(tmp_path: Path, backends: Backends) -> None:
    embedder = CountingEmbedder()
    async with opened(tmp_path, backends, embedder) as collections:
        retriever = HybridRetriever(collections, embedder, SETTINGS)
        await collections.create(NAME)
        await ingest_documents([*CORPUS, *GERMAN, REPEATED], NAME, collections)

        async def found(query: str, side: str = "bm25") -> list[str]:
            wanted = SearchRequest(query, 10, NAME, side, widened=True)  # type: ignore[arg-type]
            result = await retriever.search(wanted)
            assert result.missing == ()
            assert all(math.isfinite(hit.score) for hit in result.passages)
            return [hit.passage.passage_id.partition("#")[0] for hit in result.passages]

        assert await found("the") == []
        assert await found("the", "hybrid") != []
        assert await found("\N{VOLCANO}\N{EARTH GLOBE EUROPE-AFRICA}") == []
        assert await found("\N{VOLCANO}\N{EARTH GLOBE EUROPE-AFRICA}", "hybrid") != []
        long = ("volcano near Catania in Sicily, " * 125)[:4_000]
        for side in ("bm25", "dense", "hybrid"):
            assert "etna" in (await found(long, side))[:3]
        # Repetition is worth no more than BM25's limit: it does not hide what has both words.
        order = await found("opera Bellini")
        assert order.index("norma") < order.index("repeated")
        assert "repeated" in await found("opera", "hybrid")
        assert (await found("Häuser Stadte Opern"))[0] == "oper"
        assert (await found("hausern"))[0] == "oper"
        assert {"vulkan", "catania", "etna"} >= set((await found("Catania"))[:3])

        with pytest.raises(InvalidRequest, match="--analysis german"):
            await collections.create(NAME, analysis="german")


class Spoilt(CountingEmbedder):
    """Makes vectors that are no numbers from now on, if told to."""

    spoilt = False

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        vectors = await super().embed(texts)
        return [[math.nan] * len(each) for each in vectors] if self.spoilt else vectors


async def test_vectors_that_are_no_numbers_are_refused(tmp_path: Path, backends: Backends) -> None:
    embedder = Spoilt()
    async with opened(tmp_path, backends, embedder) as collections:
        retriever = HybridRetriever(collections, embedder, SETTINGS)
        await collections.create(NAME)
        await ingest_documents(CORPUS[:4], NAME, collections)
        embedder.spoilt = True
        with pytest.raises(RevelatorError, match="not finite"):
            await ingest_documents(CORPUS, NAME, collections)
        with pytest.raises(RevelatorError, match="not finite"):
            await retriever.search(SearchRequest("opera", 3, NAME, "dense"))
        result = await retriever.search(SearchRequest("opera", 3, NAME))
        assert result.passages
        assert "dense" in result.missing
        embedder.spoilt = False
        await ingest_documents(CORPUS, NAME, collections)
        result = await retriever.search(SearchRequest("volcano", 3, NAME, "dense"))
        assert (result.passages[0].passage.passage_id, result.missing) == ("etna", ())
