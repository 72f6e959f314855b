from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import pytest

from service.retrieval.collections.consistency import _records
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import opened

pytestmark = pytest.mark.anyio


async def test_only_numbers_of_passages_count_as_such(tmp_path: Path) -> None:
    """`²` is a digit, but not of a number."""
    long = " ".join(f"Sentence {n} is about Etna." for n in range(100))
    documents = [{"id": "a#²", "text": "Short."}, {"id": "b#²", "text": long}]
    async with opened(tmp_path) as collections:
        await collections.create("c")
        await ingest_documents(documents, "c", collections)
        collection = await collections.get("c")

        def read() -> None:
            stored = {each.passage.passage_id: each for each in collection.bm25.records()}
            assert {"a#²", "b#²#1", "b#²#2"} <= stored.keys()
            assert {each.passage.passage_id: each for each in _records(collection.dense)} == stored

        await anyio.to_thread.run_sync(read)
