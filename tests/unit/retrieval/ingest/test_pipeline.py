from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import pytest

from service.core.errors import InvalidRequest, NotFound, RevelatorError
from service.retrieval.base import SearchRequest
from service.retrieval.collections import catalog
from service.retrieval.documents import parse_document
from service.retrieval.ingest import pipeline
from service.retrieval.ingest.pipeline import (
    BATCH_CHARACTERS,
    BATCH_DOCUMENTS,
    IngestResult,
    Listener,
    ahead,
    ingest,
    take,
)
from service.retrieval.ingest.sources import SourceEntry, SourceProblem
from service.retrieval.search.hybrid import HybridRetriever
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import CORPUS, SETTINGS, CountingEmbedder, opened


def write(path: Path, *documents: Any) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


async def test_files_go_in_once(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", *CORPUS, "bad")
    heard: list[tuple[int, int | None, int]] = []
    problems: list[SourceProblem] = []
    embedder = CountingEmbedder()
    async with opened(tmp_path, embedder) as collections:
        await collections.create("c")
        listener = Listener(lambda *told: heard.append(told), problems.append)
        report = await ingest([file], "c", collections, listener)
        assert (report.indexed, report.unchanged, report.failed, report.embedded) == (5, 0, 1, 5)
        assert report.failures == problems
        assert heard[-1] == (file.stat().st_size, file.stat().st_size, 5)
        first = await collections.manifest("c")
        again = await ingest([file], "c", collections)
        assert (again.indexed, again.unchanged, again.failed, again.embedded) == (0, 5, 1, 0)
        assert await collections.manifest("c") == first
    assert (first.documents, first.passages, first.state) == (5, 5, "complete")
    assert first.metadata_fields == ("kind", "staged", "tags", "year")


async def test_a_file_is_looked_for_once_but_for_what_its_own_batches_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three batches; ten documents of the first one come again, changed, in the others."""
    documents = [{"id": f"d{n}", "text": f"Text {n}."} for n in range(600)]
    again = [{"id": f"d{n}", "text": f"Other text {n}."} for n in range(10)]
    file = write(tmp_path / "c.jsonl", *documents[:300], *again, *documents[300:])
    looked: list[str] = []
    async with opened(tmp_path) as collections:
        await collections.create("c")
        bm25 = (await collections.get("c")).bm25
        look = bm25.among

        def among(field: Any, ids: Sequence[str]) -> Any:
            looked.extend(ids)
            return look(field, ids)

        monkeypatch.setattr(bm25, "among", among)
        report = await ingest([file], "c", collections)
        assert (report.indexed, report.unchanged) == (610, 0)
        seen = Counter(looked)
        assert {document_id for document_id, times in seen.items() if times > 1} <= {
            f"d{n}" for n in range(10)
        }
        assert len(seen) == 600
        [record] = await collections.document("c", "d3")
        assert record.passage.text == "Other text 3."
        assert (await collections.manifest("c")).documents == 600
        assert (await collections.check("c")).findings == []
        looked.clear()
        assert (await ingest([file], "c", collections)).indexed == 20
        [record] = await collections.document("c", "d3")
        assert record.passage.text == "Other text 3."
        assert (await collections.check("c")).findings == []


async def test_a_limited_number_of_ingests_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "MOST_READING", 2)
    read, reading = pipeline.take, [0, 0]  # now, and at most

    def take(*given: Any) -> list[SourceEntry]:
        reading[0] += 1
        reading[1] = max(reading)
        time.sleep(0.1)
        reading[0] -= 1
        return read(*given)

    monkeypatch.setattr(pipeline, "take", take)
    file = write(tmp_path / "c.jsonl", {"id": "d", "text": "Text."})
    async with opened(tmp_path) as collections:
        async with anyio.create_task_group() as group:
            for number in range(5):
                await collections.create(f"c{number}")
                group.start_soon(ingest, [file], f"c{number}", collections)
        assert reading == [0, 2]
        assert (await collections.manifest("c4")).documents == 1


@pytest.mark.parametrize("way", ["fails", "is cancelled"])
async def test_a_write_that_ends_early_is_not_called_complete_and_the_next_mends(
    tmp_path: Path, way: str
) -> None:
    embedder = CountingEmbedder()
    documents = [parse_document({"id": f"d{n}", "text": f"Text {n}."}) for n in range(100)]
    async with opened(tmp_path, embedder) as collections:
        retriever = HybridRetriever(collections, embedder, SETTINGS)
        await collections.create("c")
        async with collections.writing("c") as writer:
            with anyio.CancelScope() as scope, contextlib.suppress(RevelatorError):
                embedder.fail_after = 64 if way == "fails" else None
                cancel = scope.cancel if way == "is cancelled" else lambda: None
                await writer.write(documents, lambda share: cancel())
        embedder.fail_after = None
        assert (await collections.manifest("c")).state == "building"
        result = await retriever.search(SearchRequest("Text 1.", 3, "c"))
        assert result.missing == ("index-incomplete",)
        async with collections.writing("c") as writer:
            await writer.write(documents)
        assert (await collections.manifest("c")).state == "complete"
        assert embedder.passages == 100
        assert (await retriever.search(SearchRequest("Text 1.", 3, "c"))).missing == ()


async def test_refusals(tmp_path: Path) -> None:
    async with opened(tmp_path) as collections:
        with pytest.raises(NotFound, match="existing collections: none"):
            await ingest_documents(CORPUS, "c", collections)
        with pytest.raises(InvalidRequest, match="shipped"):
            await ingest([], "sample", collections)
        await collections.create("c")
        many = [
            {"id": f"d{n}", "text": "t", **{f"f{n}-{m}": 1 for m in range(60)}} for n in range(5)
        ]
        with pytest.raises(InvalidRequest, match="256 metadata fields"):
            await ingest_documents(many, "c", collections)
        await collections.create("c", metadata_fields=[f"f{n}" for n in range(256)])
        with pytest.raises(InvalidRequest, match="256 metadata fields"):
            await collections.create("c", metadata_fields=["another"])
        assert await ingest([], "c", collections) == IngestResult()


def test_a_batch_is_bounded_in_number_and_size() -> None:
    problem = SourceEntry(SourceProblem("f", 1, "bad"), "f", 1, 0)
    large = SourceEntry(parse_document({"text": "x" * (BATCH_CHARACTERS // 2)}), "f", 1, 0)
    assert len(take(iter([problem] * 1_000))) == BATCH_DOCUMENTS
    entries = iter([problem, large, large, large, problem])
    assert [len(take(entries)) for _ in range(3)] == [4, 1, 0]


async def test_in_order_and_one_ahead() -> None:
    numbers, began = iter(range(1, 21)), list[int]()

    def read() -> int | None:
        began.extend(number := [*islice(numbers, 1)])
        return number[0] if number else None

    async with aclosing(ahead(read)) as items:
        worked = 0
        async for item in items:
            worked += 1
            assert item == worked
            with anyio.fail_after(5):
                while len(began) < min(20, worked + 1):  # noqa: ASYNC110 (in a thread)
                    await anyio.sleep(0.001)
            await anyio.wait_all_tasks_blocked()
            await anyio.sleep(0.005)
            assert len(began) == min(20, worked + 1)
    assert worked == 20


async def test_a_failure_of_the_consumer_ends_a_read_that_hangs() -> None:
    numbers, forever = iter([1]), threading.Event()

    def read() -> int | None:
        return next(numbers, None) or forever.wait(20) or None

    async def consume() -> None:
        async with aclosing(ahead(read)) as items:
            async for _ in items:
                raise RevelatorError("full disk")

    with anyio.fail_after(5), pytest.raises(RevelatorError, match="full disk"):
        await consume()
    forever.set()
