"""Work in a process of its own, to be killed with -9; run as `python -m tests.faults.killing`.

It ingests, re-indexes or repairs. Its embedder counts: every passage given to it is noted in a
file before it is embedded, so that the count outlives the process. It can kill itself at its n-th
durable operation, whichever that is: a manifest, an upsert, a delete or a flush in the dense store,
a commit in tantivy; in a re-index also the removal of a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import anyio

from service.retrieval.collections import lifecycle, manifest
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.manifest import CollectionReport, Manifest
from service.retrieval.collections.sample import Sample
from service.retrieval.embedding import HashingEmbedder, Vector
from service.retrieval.ingest.pipeline import IngestResult, ingest
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore
from service.retrieval.stores.tantivy_store import TantivyStore
from tests.unit.retrieval.worlds import dense_hashes

NAME = "killed"
Work = Literal["ingest", "replace", "repair"]
DURABLE = (
    (QdrantEdgeStore, ("upsert", "delete", "flush")),
    (TantivyStore, ("replace",)),
    (manifest, ("write_whole",)),
)


class NotingEmbedder(HashingEmbedder):
    def __init__(self, log: Path, delay_s: float = 0.0) -> None:
        self._log = log
        self._delay_s = delay_s

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        handle = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{len(texts)}\n".encode())
        os.close(handle)
        await anyio.sleep(self._delay_s)
        return await super().embed_passages(texts)


@dataclass(frozen=True)
class State:
    """What both stores hold: content hash by passage id."""

    bm25: dict[str, str]
    dense: dict[str, str]
    manifest: Manifest


def noted(log: Path) -> int:
    return sum(map(int, log.read_text().split())) if log.exists() else 0


def documents(path: Path, count: int, *, words: int = 60) -> Path:
    """A JSONL file of `count` documents of different lengths; some are cut into passages."""
    with path.open("w") as file:
        for n in range(count):
            told = (f"Passage {n} has word {n * i} in it." for i in range(2 + n * 7 % words))
            document = {"id": f"d{n}", "title": f"T{n}", "text": " ".join(told), "kind": n % 3}
            file.write(json.dumps(document) + "\n")
    return path


async def run(
    data: Path, file: Path, embedder: HashingEmbedder, *, replace: bool = False
) -> IngestResult:
    """One whole ingest, or re-index, in this process."""
    collections = Collections(data, embedder, Sample(data / "no-sample"))
    try:
        await collections.create(NAME)
        return await ingest([file], NAME, collections, replace=replace)
    finally:
        await collections.aclose()


async def repair(data: Path, embedder: HashingEmbedder) -> CollectionReport:
    """`revelator check --repair` in this process."""
    collections = Collections(data, embedder, Sample(data / "no-sample"))
    try:
        return await collections.check(NAME, repair=True)
    finally:
        await collections.aclose()


async def state(data: Path) -> State:
    """Look into the stores, as they are."""
    collections = Collections(data, HashingEmbedder(), Sample(data / "no-sample"))
    try:
        collection = await collections.get(NAME)
        records = list(collection.bm25.records())
        bm25 = {record.passage.passage_id: record.content_hash for record in records}
        assert len(bm25) == len(records)
        return State(bm25, dense_hashes(collection.dense), collection.manifest)
    finally:
        await collections.aclose()


def start(data: Path, file: Path, log: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "tests.faults.killing",
        str(data),
        str(file),
        str(log),
        *options,
    ]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)


def run_and_kill(
    data: Path,
    file: Path,
    log: Path,
    *,
    operation: int | None = None,
    after_s: float | None = None,
    work: Work = "ingest",
) -> bool:
    """Killed at its `operation`-th durable operation, or `after_s` from the start of its work.

    False when the work ended before.
    """
    options = ["--operation", str(operation)] if operation is not None else ["--delay", "0.01"]
    options += ["--work", work]
    with start(data, file, log, *options) as process:
        assert process.stdout is not None
        process.stdout.readline()
        if after_s is not None:
            time.sleep(after_s)
            process.kill()
    assert process.returncode in {0, -signal.SIGKILL}
    return process.returncode != 0


def _dies_at(operation: int) -> Callable[[Any], Any]:
    """Wraps a durable operation: the n-th of all kills the process, even ones before, odd after."""
    count = 0

    def wrap(call: Any) -> Any:
        def wrapped(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            own = count  # others may begin before this one ends
            if own == operation and operation % 2 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*arguments)
            if own == operation:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    return wrap


def die_at(operation: int, *, removals: bool = True) -> None:
    """Kill this process at its n-th durable operation from now on."""
    wrap = _dies_at(operation)
    for place, names in (*DURABLE, *([(lifecycle, ("discard",))] if removals else [])):
        for name in names:
            setattr(place, name, wrap(getattr(place, name)))


def _main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("data", "file", "log"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--operation", type=int)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--work", choices=get_args(Work), default="ingest")
    given = parser.parse_args()
    if given.operation is not None:
        die_at(given.operation, removals=given.work == "replace")
    print("started", flush=True)
    embedder = NotingEmbedder(given.log, given.delay)
    if given.work == "repair":
        anyio.run(repair, given.data, embedder)
    else:
        replace = given.work == "replace"
        anyio.run(lambda: run(given.data, given.file, embedder, replace=replace))


if __name__ == "__main__":
    _main()
