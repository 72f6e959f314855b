"""A real store that breaks under the service: one side, then both, then whole again."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.core.errors import RetrievalFailure
from service.retrieval.base import SearchRequest
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.search.hybrid import HybridRetriever
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import CORPUS, SETTINGS, opened


async def test_real_stores_that_break(tmp_path: Path) -> None:
    embedder = HashingEmbedder()
    async with opened(tmp_path, embedder) as collections:
        await collections.create("c")
        await ingest_documents(CORPUS, "c", collections)
        retriever = HybridRetriever(collections, embedder, SETTINGS)
        question = SearchRequest("Which volcano is near Catania?", 2, "c")
        collection = await collections.get("c")

        shard, collection.dense._shard = collection.dense._shard, None
        result = await retriever.search(question)
        assert (result.passages[0].passage.passage_id, result.missing) == ("etna", ("dense",))

        index, collection.bm25._index = collection.bm25._index, None
        with pytest.raises(RetrievalFailure, match=r"tantivy failed.*qdrant_edge failed"):
            await retriever.search(question)

        collection.dense._shard = shard
        result = await retriever.search(question)
        assert (result.passages[0].passage.passage_id, result.missing) == ("etna", ("bm25",))

        collection.bm25._index = index
        assert (await retriever.search(question)).missing == ()
