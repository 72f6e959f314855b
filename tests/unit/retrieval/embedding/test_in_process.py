from __future__ import annotations

import threading
from collections.abc import Sequence

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from service.retrieval.embedding.contract import BATCH, EmbeddingContract, Vector
from service.retrieval.embedding.embedders import InProcessEmbedder

CONTRACT = EmbeddingContract(model="a model", dimension=1)


class Forward:
    """A stand-in for a model's forward pass: notes batches, waits when told to, may fail."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.started = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def __call__(self, texts: Sequence[str]) -> list[Vector]:
        self.started.set()
        assert self.gate.wait(20)
        self.batches.append(list(texts))
        if self.failure:
            raise self.failure
        return [[float(len(text))] for text in texts]


@pytest.fixture
def forward() -> Forward:
    return Forward()


@pytest.fixture
def embedder(forward: Forward) -> InProcessEmbedder:
    return InProcessEmbedder(CONTRACT, lambda: forward, lambda: None)


async def running(forward: Forward) -> None:
    await anyio.to_thread.run_sync(forward.started.wait)


async def test_passages_go_in_batches_by_length_and_come_back_in_order(
    forward: Forward, embedder: InProcessEmbedder
) -> None:
    texts = ["x" * (n * 37 % 100 + 1) for n in range(70)]
    vectors = await embedder.embed_passages(texts)
    assert vectors == [[float(len(text))] for text in texts]
    assert [len(batch) for batch in forward.batches] == [32, 32, 6]
    assert max(map(len, forward.batches[0])) <= min(map(len, forward.batches[1]))
    assert await embedder.embed_passages([]) == []


async def test_a_query_waits_for_one_batch_of_passages(
    forward: Forward, embedder: InProcessEmbedder
) -> None:
    forward.gate.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(embedder.embed_passages, ["passage"] * 3 * BATCH)
        await running(forward)
        group.start_soon(embedder.embed_queries, ["query"])
        await anyio.lowlevel.checkpoint()
        forward.gate.set()
    assert [len(batch) for batch in forward.batches] == [BATCH, 1, BATCH, BATCH]
