"""Remembered results on real stores: a change is seen by the next question."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.core.settings import RetrievalSettings
from service.retrieval.base import SearchRequest
from service.retrieval.embedding import HashingEmbedder
from service.retrieval.search.hybrid import HybridRetriever
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import CORPUS, Observed, opened

pytestmark = pytest.mark.anyio

SETTINGS = RetrievalSettings.model_validate(
    {"embedding_model": "hashing", "cache": {"search_results": 10, "query_embeddings": 0}}
)
VESUVIUS = {"id": "vesuvius", "title": "Vesuvius", "text": "Vesuvius is a volcano near Naples."}


async def test_changes_are_seen_by_the_next_question(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        observed = Observed()
        retriever = HybridRetriever(collections, HashingEmbedder(), SETTINGS, observed)

        async def ask() -> set[str]:
            result = await retriever.search(SearchRequest("volcano", 9, "c", "bm25"))
            return {hit.passage.passage_id for hit in result.passages}

        async def twice() -> set[str]:
            """The second answer comes out of the cache."""
            first = await ask()
            observed.asked.clear()
            assert await ask() == first
            assert observed.asked == [("search_results", True)]
            return first

        await collections.create("c")
        await ingest_documents(CORPUS, "c", collections)
        assert await twice() == {"etna"}
        await ingest_documents([VESUVIUS], "c", collections)
        assert await twice() == {"etna", "vesuvius"}
        await collections.delete_document("c", "etna")
        assert await twice() == {"vesuvius"}
        await collections.delete("c")
        await collections.create("c")
        assert await twice() == set()
        await ingest_documents(CORPUS, "c", collections)
        assert await twice() == {"etna"}


async def test_nothing_is_remembered_while_a_collection_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        observed = Observed()
        retriever = HybridRetriever(collections, HashingEmbedder(), SETTINGS, observed)
        await collections.create("c")
        await ingest_documents(CORPUS, "c", collections)
        request = SearchRequest("volcano", 9, "c")
        async with collections.writing("c") as writer:
            assert await writer.delete("etna")
            assert (await retriever.search(request)).missing == ("index-incomplete",)
            await retriever.search(request)
        await retriever.search(request)
        assert [hit for _, hit in observed.asked] == [False, False, False]
