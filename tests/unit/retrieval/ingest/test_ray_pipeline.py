"""What Ray is asked for, without Ray; tests/faults/test_ray_ingest.py runs it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from service.core.settings import RetrievalSettings
from service.retrieval.embedding import HashingEmbedder, embedders
from service.retrieval.ingest.sources import SourceFile

NAME = "service.retrieval.ingest.ray_pipeline"
FOUND = [SourceFile(Path("a.txt"), "a.txt")]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    stub = MagicMock()
    stub.exceptions.RayError, stub.ObjectRef = RuntimeError, bytes
    for name, module in (("ray", stub), ("ray.data", stub.data)):
        monkeypatch.setitem(sys.modules, name, module)
    before = sys.modules.pop(NAME, None)
    yield stub
    sys.modules.pop(NAME, None)
    if before is not None:
        sys.modules[NAME] = before


@pytest.mark.parametrize(("gpus", "expected"), [(0, 1), (2, embedders.MOST_THREADS)])
def test_a_worker_without_a_gpu_computes_on_one_thread(
    ray: Any, monkeypatch: pytest.MonkeyPatch, gpus: int, expected: int
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(embedders, "minilm_embedder", lambda _, given: threads.append(given))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    ray.cluster_resources.return_value = {"CPU": 16.0, "GPU": float(gpus)}
    settings = RetrievalSettings(embedding_model="minilm")
    work = importlib.import_module(NAME)._work
    assert list(work(FOUND, None, settings, None, None)) == []
    embedding = ray.data.from_items.return_value.map_batches.return_value.map_batches
    worker, arguments = embedding.call_args.args[0], embedding.call_args.kwargs
    worker(*arguments["fn_constructor_args"]).close()
    assert threads == [expected]


def test_another_embedder_may_be_opened(ray: Any) -> None:
    ray.cluster_resources.return_value = {"CPU": 2.0}
    pipeline, own = importlib.import_module(NAME), HashingEmbedder()
    settings = RetrievalSettings(embedding_model="hashing")
    assert list(pipeline._work(FOUND, None, settings, None, lambda _: own)) == []
    embedding = ray.data.from_items.return_value.map_batches.return_value.map_batches
    assert embedding.call_args.kwargs["fn_constructor_args"][2](settings) is own
