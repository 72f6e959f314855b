"""A round over the collections is bounded, whatever the stores do."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from service.retrieval.collections import catalog
from service.retrieval.embedding.embedders import HashingEmbedder
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import CORPUS, opened

pytestmark = pytest.mark.anyio


async def test_a_store_that_hangs_holds_up_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "INTERVAL_S", 0.0)
    monkeypatch.setattr(catalog, "EMBEDDED_TIMEOUT_S", 1.0)
    thawed = threading.Event()
    async with opened(tmp_path, HashingEmbedder()) as collections:
        for name in ("a", "b"):
            await collections.create(name)
            await ingest_documents(CORPUS, name, collections)
        frozen, other = await collections.get("a"), await collections.get("b")
        count = frozen.dense.count_passages

        def hangs() -> int:
            thawed.wait(60)
            return count()

        monkeypatch.setattr(frozen.dense, "count_passages", hangs)
        monkeypatch.setattr(other.dense, "count_passages", lambda: 0)
        try:
            started = time.monotonic()
            assert await collections.problems() == {}
            found = await collections.problems()  # the one after it had its turn
            assert time.monotonic() - started < 15
            assert list(found) == ["b"]
        finally:
            thawed.set()
