"""The dense stores against exact search, for every way to compare vectors and to keep them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.errors import RevelatorError
from service.core.settings.retrieval import Distance, Quantization
from service.retrieval.base import SearchRequest
from service.retrieval.documents import Document, PassageRecord, passages_of
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.stores import points, qdrant_store
from service.retrieval.stores.base import VectorStore
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore
from service.retrieval.stores.qdrant_store import create
from tests.contracts.stores import QUIET, qdrant_server

# qdrant-client's engine in this process compares with every vector, and says so.
EXACT = pytest.mark.filterwarnings("ignore:Local mode performs exact:UserWarning")
pytestmark = [QUIET, EXACT]

NAME = "dense-contract"
EMBEDDED = "qdrant-edge"
DIMENSION, COUNT = 32, 400
QUANTIZATIONS: tuple[Quantization, ...] = ("none", "scalar", "binary")


class Worlds:
    """Makes stores and closes them; a Qdrant's collection is gone at the end."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.kind: str = request.param
        protocol = self.kind.rpartition(" ")[2]
        self.server = None if self.kind == EMBEDDED else qdrant_server(request, protocol)
        self.folder = folder
        self.made: list[VectorStore] = []

    async def make(self, contract: EmbeddingContract, quantization: Quantization) -> VectorStore:
        store: VectorStore
        if self.server is not None:
            store = await create(self.server, NAME, contract, quantization, replace=True)
        else:
            store = QdrantEdgeStore(self.folder, contract, quantization)
        self.made.append(store)
        return store

    async def aclose(self) -> None:
        for store in self.made:
            await store.close()
        if self.server is not None:
            await qdrant_store.drop(self.server, NAME)
            await self.server.aclose()


@pytest.fixture(params=[EMBEDDED, "Qdrant in memory", "Qdrant by gRPC", "Qdrant by REST"])
async def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Worlds]:
    made = Worlds(request, tmp_path / "dense")
    yield made
    await made.aclose()


def records(count: int) -> list[PassageRecord]:
    documents = (Document(f"p{n:04}", "", f"Text {n}.", {"half": n % 2}) for n in range(count))
    return [record for document in documents for record in passages_of(document)]


def vectors(count: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(count, DIMENSION)).astype(np.float32)


def similarities(stored: Any, query: Any, distance: Distance) -> Any:
    if distance == "dot":
        return stored @ query
    return stored @ query / np.linalg.norm(stored, axis=1) / np.linalg.norm(query)


@pytest.mark.parametrize("kept", QUANTIZATIONS)
@pytest.mark.parametrize("distance", ["cosine", "dot"])
async def test_the_nearest_come_first(
    worlds: Worlds, distance: Distance, kept: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One bit of each of so few dimensions says little: every vector is scored again.
    monkeypatch.setattr(points, "OVERSAMPLING", 40.0)
    contract = EmbeddingContract(model="m", dimension=DIMENSION, distance=distance)
    store = await worlds.make(contract, kept)
    stored = vectors(COUNT, seed=1)
    await store.upsert(records(COUNT), stored.tolist())
    await store.optimize()
    for query in vectors(5, seed=2):
        exact = similarities(stored, query, distance)
        best = np.argsort(-exact)[:10]
        hits = await store.search(SearchRequest("", 10, "c", vector=query.tolist()))
        assert [hit.passage.passage_id for hit in hits] == [f"p{n:04}" for n in best]
        assert [hit.score for hit in hits] == pytest.approx(exact[best].tolist(), rel=1e-4)
        even = [n for n in np.argsort(-exact) if n % 2 == 0 and n != best[0]][:3]
        shut = frozenset({f"p{best[0]:04}"})
        hits = await store.search(
            SearchRequest("", 3, "c", filter={"half": (0,)}, exclude=shut, vector=query.tolist())
        )
        assert [hit.passage.passage_id for hit in hits] == [f"p{n:04}" for n in even]


async def test_vectors_of_another_size_are_refused(worlds: Worlds) -> None:
    contract = EmbeddingContract(model="m", dimension=DIMENSION)
    store = await worlds.make(contract, "none")
    await store.upsert(records(3), vectors(3, seed=1).tolist())
    with pytest.raises(RevelatorError, match="embedding model"):
        await store.search(SearchRequest("", 3, "c", vector=[1.0] * (DIMENSION + 1)))
    with pytest.raises(RevelatorError, match="embedding model"):
        await store.upsert(records(1), [[1.0] * (DIMENSION - 1)])
    assert await store.count_passages() == 3
    assert len(await store.search(SearchRequest("", 3, "c", vector=[1.0] * DIMENSION))) == 3
