"""Ingests in this process and what they leave behind, and a process that kills itself."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from service.retrieval.collections import lifecycle, manifest
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.manifest import Manifest
from service.retrieval.collections.sample import Sample
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.ingest.pipeline import IngestResult, ingest
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore
from service.retrieval.stores.tantivy_store import TantivyStore
from tests.unit.retrieval.worlds import contents, opened

NAME = "killed"
DURABLE = (
    (QdrantEdgeStore, ("upsert", "delete", "flush")),
    (TantivyStore, ("replace",)),
    (manifest, ("save_whole",)),
    (lifecycle, ("discard",)),
)


@dataclass(frozen=True)
class State:
    """What both stores hold: content hash by passage id."""

    bm25: dict[str, str]
    dense: dict[str, str]
    manifest: Manifest


def documents(path: Path, count: int, *, words: int = 60) -> Path:
    """A JSONL file of `count` documents of different lengths; some are cut into passages."""
    with path.open("w") as file:
        for n in range(count):
            told = (f"Passage {n} has word {n * i} in it." for i in range(2 + n * 7 % words))
            document = {"id": f"d{n}", "title": f"T{n}", "text": " ".join(told), "kind": n % 3}
            file.write(json.dumps(document) + "\n")
    return path


async def run(data: Path, file: Path, embedder: HashingEmbedder) -> IngestResult:
    """One whole ingest."""
    async with opened(data, embedder) as collections:
        await collections.create(NAME)
        return await ingest([file], NAME, collections)


class _AsTheyAre(Collections):
    async def _put_right(self, name: str) -> None:
        """Do nothing: it would delete vectors while they are counted."""


async def state(data: Path) -> State:
    """Look into the stores, as they are."""
    collections = _AsTheyAre(data, HashingEmbedder(), Sample(data / "no-sample"))
    try:
        collection = await collections.get(NAME)
        return State(*await contents(collection), collection.manifest)
    finally:
        await collections.aclose()


def die_at(operation: int) -> None:
    """Kill this process at its n-th durable operation from now on: a manifest, an upsert, a delete
    or a flush in the dense store, a commit in tantivy, the removal of a folder; even ones before
    the operation, odd ones after it."""
    count = 0

    @contextmanager
    def counted() -> Iterator[None]:
        nonlocal count
        count += 1
        own = count  # others may begin before this one ends
        if own == operation and operation % 2 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        yield
        if own == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        async def awaited(*arguments: Any) -> Any:
            with counted():
                return await call(*arguments)

        def called(*arguments: Any) -> Any:
            with counted():
                return call(*arguments)

        return awaited if iscoroutinefunction(call) else called

    for place, names in DURABLE:
        for name in names:
            setattr(place, name, wrap(getattr(place, name)))
