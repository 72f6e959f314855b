"""What Ray is asked for, without Ray; tests/faults/test_ray_ingest.py runs it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from service.core.errors import RevelatorError
from service.core.settings import RetrievalSettings
from service.retrieval.embedding import embedders
from service.retrieval.embedding.contract import BATCH
from service.retrieval.embedding.embedders import HashingEmbedder

NAME = "service.retrieval.embedding.on_ray"
SETTINGS = RetrievalSettings(embedding_model="hashing")


class RayError(Exception):
    pass


class Cluster:
    """Actors run in this process; their options and calls are kept."""

    def __init__(self) -> None:
        self.resources = {"CPU": 2.0}
        self.options: list[dict[str, float]] = []
        self.calls: list[int] = []
        self.failure: Exception | None = None

    def remote(self, **_: int) -> Callable[[type], Any]:
        return lambda actor: SimpleNamespace(
            options=lambda **options: SimpleNamespace(
                remote=lambda *given: self.started(actor(*given), options)
            )
        )

    def started(self, actor: Any, options: dict[str, float]) -> Any:
        number = len(self.options)
        self.options.append(options)

        async def embed(texts: list[str]) -> Any:
            self.calls.append(number)
            if self.failure:
                raise self.failure
            return await actor.embed(texts)

        return SimpleNamespace(embed=SimpleNamespace(remote=embed))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster()
    ray = SimpleNamespace(
        remote=made.remote,
        cluster_resources=lambda: made.resources,
        exceptions=SimpleNamespace(RayError=RayError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    before = sys.modules.pop(NAME, None)
    yield made
    sys.modules.pop(NAME, None)
    if before is not None:
        sys.modules[NAME] = before


@pytest.mark.parametrize(("gpus", "expected"), [(0, 1), (2, embedders.MOST_THREADS)])
async def test_a_worker_without_a_gpu_computes_on_one_thread(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, gpus: int, expected: int
) -> None:
    threads: list[int] = []

    def minilm(contract: Any, given: int) -> HashingEmbedder:
        threads.append(given)
        return HashingEmbedder()

    monkeypatch.setattr(embedders, "minilm_embedder", minilm)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    cluster.resources = {"CPU": 4.0, "GPU": float(gpus)}
    importlib.import_module(NAME).RayEmbedder(RetrievalSettings(embedding_model="minilm"))
    assert set(threads) == {expected}
    assert cluster.options == ([{"num_gpus": 1}] * 2 if gpus else [{"num_cpus": 1}] * 4)


async def test_passages_are_shared_out_and_queries_stay_here(cluster: Cluster) -> None:
    embedder, here = importlib.import_module(NAME).RayEmbedder(SETTINGS), HashingEmbedder()
    assert embedder.contract == here.contract
    assert embedder.problem() is None
    assert embedder.batch == 4 * BATCH
    texts = [f"Text {number}." for number in range(3 * BATCH + 1)]
    assert await embedder.embed_passages(texts) == await here.embed_passages(texts)
    assert set(cluster.calls) == {0, 1}
    assert len(cluster.calls) == 4
    assert await embedder.embed_queries(["a"]) == await here.embed_queries(["a"])
    assert len(cluster.calls) == 4


async def test_the_error_of_a_worker_is_told_without_layers(cluster: Cluster) -> None:
    embedder = importlib.import_module(NAME).RayEmbedder(SETTINGS)
    cluster.failure = RayError("many lines")
    cluster.failure.__cause__ = ValueError("no room\nlong trace")
    with pytest.raises(RevelatorError, match=r"on Ray failed: ValueError: no room$"):
        await embedder.embed_passages(["a"])
