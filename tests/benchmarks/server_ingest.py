"""What an ingest and a repair cost beside the bare clients and the embedder.

    python -m tests.benchmarks.server_ingest --data DATA --qdrant URL
        [--passages 20000] [--rounds 3] [--model minilm] [--only repair]

DATA holds `2wikimultihopqa/corpus.jsonl`, whose passages are repeated under other ids. Both sides
of a ratio run in turns in one process; medians are taken.

1. `ingest` of the file into tantivy and Qdrant, each vector made beforehand, against `upsert` of
   the same points, 256 at a time over the same protocol, into a collection of the same kind.
   Target <= 1.5.
2. `check --repair` of a collection that Qdrant has lost, embedding by MODEL, against the embedder
   alone on the same texts, 32 at a time. Target <= 1.2; also told as CPU time of this process, for
   a busy machine. A question a second is asked meanwhile, and every one must be answered.

`--only repair` runs part 2 alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import orjson

from service.core.domain import Passage
from service.core.settings import RetrievalSettings
from service.retrieval.base import Retriever, SearchRequest
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.sample import Sample
from service.retrieval.documents import PassageRecord, parse_document, passages_of
from service.retrieval.embedding import BATCH, Embedder, Vector, open_embedder, passage_input
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.ingest.pipeline import ingest
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.stores import qdrant_store
from service.retrieval.stores.qdrant_server import QdrantServer
from service.retrieval.stores.records import payload_of, point_id

NAME, BARE = "server-ingest", "server-ingest-bare"
TIMEOUT_S = 60.0
INGEST, REPAIR = 1.5, 1.2  # targets
UPSERT = 256


class Ready(HashingEmbedder):
    """Gives vectors that were made beforehand."""

    def __init__(self, texts: Sequence[str]) -> None:
        dice = np.random.default_rng(0)
        numbers = dice.standard_normal((len(texts), self.contract.dimension), dtype=np.float32)
        numbers /= np.linalg.norm(numbers, axis=1, keepdims=True)
        self._vectors = dict(zip(texts, numbers.tolist(), strict=True))

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return [self._vectors[text] for text in texts]


def corpus(data: Path, folder: Path, passages: int) -> tuple[Path, list[PassageRecord]]:
    """A file that is cut into so many passages, and these."""
    lines = (data / "2wikimultihopqa" / "corpus.jsonl").read_bytes().splitlines()
    values: list[dict[str, Any]] = [orjson.loads(line) for line in lines]
    file, records = folder / "corpus.jsonl", list[PassageRecord]()
    with file.open("wb") as out:
        for number in range(1_000_000):
            value = {**values[number % len(values)], "id": f"d{number}"}
            made = passages_of(parse_document(value))
            if len(records) + len(made) > passages:
                break
            records += made
            out.write(orjson.dumps(value) + b"\n")
    return file, records


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


def told(name: str, pairs: Sequence[tuple[float, float]], target: float) -> bool:
    ours, bare = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = sorted(mine / other for mine, other in pairs)
    met = ours / bare <= target
    print(
        f"{name}: {ours:.2f} s, bare {bare:.2f} s, ratio {ours / bare:.2f} (rounds {ratios[0]:.2f} "
        f"to {ratios[-1]:.2f}; target <= {target}: {'met' if met else 'MISSED'})",
        flush=True,
    )
    return met


async def into_qdrant(folder: Path, file: Path, url: str, embedder: Embedder) -> float:
    backends = Backends(None, QdrantServer(url, TIMEOUT_S))
    collections = Collections(folder, embedder, Sample(folder / "none"), backends)
    try:
        await backends.drop(NAME)
        await collections.create(NAME)
        seconds = await timed(lambda: ingest([file], NAME, collections))
        await collections.delete(NAME)
        return seconds
    finally:
        await collections.aclose()
        await backends.aclose()


async def upserted(url: str, records: Sequence[PassageRecord], embedder: Embedder) -> float:
    """The bare client: points of the same vectors and payloads."""
    from qdrant_client.models import PointStruct

    vectors = await embedder.embed_passages([passage_input(each.passage) for each in records])
    server = QdrantServer(url, TIMEOUT_S)
    try:
        await qdrant_store.drop(server, BARE)
        make = qdrant_store.QdrantStore.create
        await anyio.to_thread.run_sync(make, server, BARE, embedder.contract)
        own = qdrant_store.collection_of(BARE)

        async def work() -> None:
            for start in range(0, len(records), UPSERT):
                points = [
                    PointStruct(
                        id=point_id(record.passage.passage_id),
                        vector={qdrant_store.VECTOR: vector},
                        payload=payload_of(record),
                    )
                    for record, vector in zip(
                        records[start : start + UPSERT], vectors[start : start + UPSERT],
                        strict=True,
                    )
                ]  # fmt: skip
                await server.call(
                    lambda client, points=points: client.upsert(own, points, wait=True)  # type: ignore[misc]
                )

        seconds = await timed(work)
        await qdrant_store.drop(server, BARE)
        return seconds
    finally:
        await server.aclose()


@dataclass(frozen=True)
class Cost:
    """Wall clock and CPU time of this process, in seconds."""

    wall: float
    cpu: float


async def cost(work: Callable[[], Awaitable[Any]]) -> Cost:
    began = time.process_time()
    return Cost(await timed(work), time.process_time() - began)


async def repaired(
    folder: Path, file: Path, url: str, records: Sequence[PassageRecord], embedder: Embedder
) -> tuple[Cost, Cost]:
    """Of the repair, and of embedding alone."""
    backends = Backends(None, QdrantServer(url, TIMEOUT_S))
    collections = Collections(folder, embedder, Sample(folder / "none"), backends)
    retriever = HybridRetriever(collections, embedder, RetrievalSettings())
    try:
        await backends.drop(NAME)
        await collections.create(NAME)
        await ingest([file], NAME, collections)
        await backends.drop(NAME, 1, ["dense"])
        async with asked_meanwhile(retriever, records):
            repair = await cost(lambda: collections.check(NAME, repair=True))
        report = await collections.check(NAME)
        assert (report.vectors, report.findings) == (len(records), [])
        await collections.delete(NAME)
    finally:
        await collections.aclose()
        await backends.aclose()
    return repair, await cost(lambda: embedded([each.passage for each in records], embedder))


@asynccontextmanager
async def asked_meanwhile(
    retriever: Retriever, records: Sequence[PassageRecord]
) -> AsyncIterator[None]:
    """A question a second, each the beginning of a passage; tells how they fared."""
    took: list[float] = []

    async def ask() -> None:
        for record in records:
            began = time.perf_counter()
            query = record.passage.text[:80]
            found = await retriever.search(SearchRequest(query, 10, NAME))
            took.append(time.perf_counter() - began)
            assert found.passages
            await anyio.sleep(1.0)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        yield
        group.cancel_scope.cancel()
    print(f"{len(took)} questions meanwhile, all answered, the slowest in {max(took):.2f} s")


async def embedded(passages: Sequence[Passage], embedder: Embedder) -> None:
    """In the order and the batches of a repair that reads a page of 1,000 at a time."""
    for start in range(0, len(passages), 1_000):
        page = sorted(passages[start : start + 1_000], key=lambda passage: len(passage.text))
        for first in range(0, len(page), BATCH):
            await embedder.embed_passages([passage_input(p) for p in page[first : first + BATCH]])


async def measure(given: argparse.Namespace, folder: Path) -> bool:
    file, records = corpus(given.data, folder, given.passages)
    ready = Ready([passage_input(record.passage) for record in records])
    rounds, met = range(given.rounds), True
    print(f"{len(records):,} passages", flush=True)
    if given.only != "repair":
        pairs = [
            (
                await into_qdrant(folder / f"q{n}", file, given.qdrant, ready),
                await upserted(given.qdrant, records, ready),
            )
            for n in rounds
        ]
        met &= told("ingest into tantivy and Qdrant / upsert", pairs, INGEST)
    return met & await measure_repair(given, folder, file, records)


async def measure_repair(
    given: argparse.Namespace, folder: Path, file: Path, records: Sequence[PassageRecord]
) -> bool:
    model = open_embedder(RetrievalSettings(embedding_model=given.model))
    repair, alone = await repaired(folder / "r", file, given.qdrant, records, model)
    await model.aclose()
    name = "repair of what Qdrant lost / embedding alone"
    told(f"{name}, CPU", [(repair.cpu, alone.cpu)], REPAIR)
    return told(name, [(repair.wall, alone.wall)], REPAIR)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--qdrant", required=True)
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--only", choices=["repair"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        met = anyio.run(measure, given, Path(folder))
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
