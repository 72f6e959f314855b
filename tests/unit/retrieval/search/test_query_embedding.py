from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from unittest import mock

import anyio
import pytest

from service.core.concurrency import gather
from service.core.errors import BackendUnavailable
from service.core.settings import RetrievalSettings
from service.retrieval.embedding.contract import Vector
from service.retrieval.search import guard, hybrid
from service.retrieval.search.guard import Guard
from service.retrieval.search.hybrid import QueryEmbedding
from tests.support.observed import Observed
from tests.unit.retrieval.worlds import CountingEmbedder


class Gated(CountingEmbedder):
    """Embeds when the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.second = anyio.Event()

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        vectors = await super().embed_queries(texts)
        if len(self.queries) == 2:
            self.second.set()
        await self.gate.wait()
        return vectors


def opened(embedder: CountingEmbedder, observed: Observed | None = None) -> QueryEmbedding:
    settings, observed = RetrievalSettings(), observed or Observed()
    with (
        mock.patch.object(guard, "RETRIES", 0),
        mock.patch.multiple(hybrid, BATCH=3, WINDOW_S=0.05),
    ):
        return QueryEmbedding(embedder, Guard("embedding", settings, observed), observed)


async def embed(embedding: QueryEmbedding, *texts: str) -> list[list[float]]:
    """In one turn of the event loop."""
    calls = [partial(embedding.vector, text, math.inf) for text in texts]
    return [list(vector) for vector in await gather(calls)]


async def test_vectors_are_the_embedders_in_order_and_remembered() -> None:
    embedder = CountingEmbedder()
    embedding = opened(embedder)
    first = await embed(embedding, "volcano", "opera")
    assert first[0] != first[1]
    expected = await CountingEmbedder().embed_queries(["volcano", "opera"])
    assert first[0] == pytest.approx(expected[0], abs=1e-6)
    assert await embed(embedding, "opera", "volcano") == [first[1], first[0]]
    assert embedder.queries == [["volcano", "opera"]]


async def test_the_least_recently_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, observed = CountingEmbedder(), Observed()
    embedding = opened(embedder, observed=observed)
    monkeypatch.setattr(hybrid, "REMEMBERED", 2)
    for text in "abacabc":
        await embed(embedding, text)
    assert embedder.queries == [["a"], ["b"], ["c"], ["b"], ["c"]]
    assert observed.asked == [False, False, True, False, True, False, False]


async def test_concurrent_questions_go_together_up_to_a_batch() -> None:
    embedder = CountingEmbedder()
    embedding = opened(embedder)
    await gather([lambda text=text: embed(embedding, text) for text in "abcd"])  # type: ignore[misc]
    assert sorted(map(len, embedder.queries)) == [1, 3]


async def test_those_that_come_while_others_are_embedded_wait_for_company() -> None:
    embedder = Gated()
    embedding = opened(embedder)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for text in "abc":
                group.start_soon(embed, embedding, text)
                # a turn or more for each: without the window each would be a batch of its own
                await anyio.sleep(0.002)
            await embedder.second.wait()
            assert embedder.queries == [["a"], ["b", "c"]]
            embedder.gate.set()


async def test_a_failure_is_not_remembered() -> None:
    embedder = CountingEmbedder()
    embedder.failure = BackendUnavailable("out")
    embedding = opened(embedder)
    with pytest.raises(BackendUnavailable):
        await embed(embedding, "a")
    embedder.failure = None
    assert len(await embed(embedding, "a")) == 1
