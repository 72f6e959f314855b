"""The graph of the embedded dense store: when it is built, that it is built beside the searches,
and what a kill leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from service.retrieval.base import SearchRequest
from service.retrieval.documents import Document, PassageRecord, passages_of
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.stores import qdrant_edge_store
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore, is_due, recover

DIMENSION, COUNT = 384, 8_000  # Qdrant builds no graph over less than 10 MB
CONTRACT = EmbeddingContract(model="m", dimension=DIMENSION)


@pytest.mark.parametrize(
    ("vectors", "in_graph", "due"),
    [(19_999, 0, False), (20_000, 0, True), (40_000, 20_001, False), (40_000, 20_000, True),
     (1_000_000, 800_001, False), (1_000_000, 800_000, True), (0, 0, False)],
)  # fmt: skip
def test_a_graph_is_due_where_a_scan_is_slow(vectors: int, in_graph: int, due: bool) -> None:
    assert is_due(vectors, in_graph) is due


def records(first: int, count: int) -> list[PassageRecord]:
    documents = (Document(f"p{n}", "", f"Text {n}.") for n in range(first, first + count))
    return [record for document in documents for record in passages_of(document)]


def clustered(count: int, seed: int) -> Any:
    """Vectors around 100 centres, as embeddings are."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(100, DIMENSION))
    noise = random.normal(size=(count, DIMENSION))
    return (centres[random.integers(0, 100, count)] + noise).astype(np.float32)


@pytest.fixture(scope="module")
async def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with COUNT vectors and no graph."""
    folder = tmp_path_factory.mktemp("filled") / "dense"
    store = QdrantEdgeStore(folder, CONTRACT)
    vectors = clustered(COUNT, seed=1)
    for start in range(0, COUNT, 1_000):
        await store.upsert(records(start, 1_000), vectors[start : start + 1_000].tolist())
    await store.close()
    return folder


@pytest.fixture
def folder(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(qdrant_edge_store, "LEAST", COUNT)
    copy = tmp_path / "dense"
    qdrant_edge_store.shutil.copytree(filled, copy)
    yield copy
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense"]


async def found(store: QdrantEdgeStore, query: Any) -> set[str]:
    hits = await store.search(SearchRequest("", 10, "c", vector=query.tolist()))
    return {hit.passage.passage_id for hit in hits}


async def test_it_is_built_while_searches_go_on(folder: Path) -> None:
    store = QdrantEdgeStore(folder, CONTRACT)
    queries = clustered(50, seed=2)
    exact = [await found(store, query) for query in queries]
    meanwhile = 0
    async with anyio.create_task_group() as group:

        async def search() -> None:
            nonlocal meanwhile
            while True:
                assert await found(store, queries[0]) == exact[0]
                meanwhile += 1
                await anyio.sleep(0.001)

        group.start_soon(search)
        await store.optimize()
        group.cancel_scope.cancel()
    assert meanwhile > 10
    assert store._shard.info().indexed_vectors_count == COUNT
    near = [await found(store, query) for query in queries]
    recall = sum(len(one & other) for one, other in zip(near, exact, strict=True)) / 500
    assert recall >= 0.97

    await store.upsert(records(COUNT, 1), queries[:1].tolist())
    assert f"p{COUNT}" in await found(store, queries[0])
    await store.close()
    again = QdrantEdgeStore(folder, CONTRACT)
    assert await again.count_passages() == COUNT + 1
    assert f"p{COUNT}" in await found(again, queries[0])
    await again.close()


async def test_a_build_that_fails_or_is_cancelled_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = QdrantEdgeStore(folder, CONTRACT)
    with anyio.CancelScope() as scope:
        real = anyio.run_process

        async def cancelled(*given: Any, **named: Any) -> Any:
            scope.cancel()
            return await real(*given, **named)

        monkeypatch.setattr(qdrant_edge_store.anyio, "run_process", cancelled)
        await store.optimize()
    assert scope.cancelled_caught
    monkeypatch.undo()
    monkeypatch.setattr(qdrant_edge_store, "LEAST", COUNT)
    monkeypatch.setattr(qdrant_edge_store.sys, "executable", "/no/such/python")
    await store.optimize()
    assert store._shard.info().indexed_vectors_count == 0
    assert await store.count_passages() == COUNT
    await store.close()


@pytest.mark.parametrize(
    "left", [("dense", "dense.graph"), ("dense.old", "dense.graph"), ("dense", "dense.old")]
)
def test_what_a_kill_leaves(tmp_path: Path, left: tuple[str, ...]) -> None:
    for name in left:
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    recover(tmp_path / "dense")
    assert [path.name for path in tmp_path.iterdir()] == ["dense"]
    kept = "dense" if "dense" in left else "dense.old"
    assert [path.name for path in (tmp_path / "dense").iterdir()] == [kept]
