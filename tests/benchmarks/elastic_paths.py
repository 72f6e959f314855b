"""What our way to Elasticsearch costs beside the bare client's.

    python -m tests.benchmarks.elastic_paths --data DATA --url URL

DATA holds `2wikimultihopqa/corpus.jsonl` (6,119 passages) and `musique/questions.jsonl`; URL is a
running Elasticsearch. Both sides of a ratio run in turns in one process, medians are taken.

1. Sixteen queries asked together (one `_msearch`) against the same sixteen one after another, both
   through `ElasticStore.search`. Target <= 0.55.
2. `ElasticStore.search` against `client.search` with the same body, nothing read from the answer:
   wall time and this process's CPU. Target <= 1.3 each.
3. `ingest` of the file into a collection against `helpers.async_bulk` of the same documents, read
   by orjson, into an index of the same mapping with one refresh at its end; each once a round,
   into a new index. Ours has no vectors (the embedder returns nothing, the dense store keeps
   nothing), but all else: parsing, cutting into passages, hashes, the look for what is stored, the
   manifest, a refresh after every batch of 256. Target <= 1.5.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson

from service.core.concurrency import gather
from service.core.domain import ScoredPassage
from service.retrieval.base import StoreQuery
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.manifest import Manifest
from service.retrieval.collections.sample import Sample
from service.retrieval.documents import PassageRecord
from service.retrieval.embedding.contract import Vector
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.ingest.pipeline import ingest
from service.retrieval.stores import elastic_store
from service.retrieval.stores.base import LexicalStore, VectorStore
from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.elastic_store import SEARCH_TYPE, ElasticStore, search_body

NAME, BARE = "paths", "paths-bare"
TOGETHER, ROUNDS = 16, 40
SEARCHES, BLOCK = 600, 20
INGESTS = 5
TARGETS = {"msearch": 0.55, "search wall": 1.3, "search CPU": 1.3, "ingest": 1.5}


class NoVectors:
    """A dense store that keeps nothing."""

    backend = "none"

    async def search(self, query: StoreQuery) -> list[ScoredPassage]:
        return []

    def count_passages(self) -> int:
        return 0

    def hashes(self, passage_ids: Sequence[str]) -> dict[str, str]:
        return {}

    def hash_pages(self) -> Iterator[dict[str, str]]:
        return iter(())

    def upsert(self, records: Sequence[PassageRecord], vectors: Sequence[Sequence[float]]) -> None:
        pass

    def delete(self, passage_ids: Sequence[str]) -> None:
        pass

    def flush(self) -> None:
        pass

    async def optimize(self) -> None:
        pass

    def close(self) -> None:
        pass


class BM25Only(Backends):
    """Elasticsearch, and no vectors."""

    def create(
        self, folder: Path, manifest: Manifest, *, replace: bool = False
    ) -> tuple[LexicalStore, VectorStore]:
        bm25, dense = super().create(folder, manifest, replace=replace)
        dense.close()
        return bm25, NoVectors()


class NoEmbedder(HashingEmbedder):
    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return [[] for _ in texts]


def lines(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


async def timed(work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """Seconds of wall clock and of this process's CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return time.perf_counter() - wall, time.process_time() - cpu


async def together(store: ElasticStore, texts: Sequence[str]) -> float:
    ratios = []
    for number in range(ROUNDS):
        start = number * TOGETHER
        queries = [StoreQuery(texts[(start + n) % len(texts)], 10) for n in range(TOGETHER)]

        async def one_by_one(queries: list[StoreQuery] = queries) -> None:
            for query in queries:
                await store.search(query)

        async def at_once(queries: list[StoreQuery] = queries) -> None:
            await gather([lambda query=query: store.search(query) for query in queries])  # type: ignore[misc]

        sequential, _ = await timed(one_by_one)
        batched, _ = await timed(at_once)
        ratios.append((batched, sequential))
    many, one = (statistics.median(side) for side in zip(*ratios, strict=True))
    print(f"16 queries: together {1000 * many:.1f} ms, one by one {1000 * one:.1f} ms")
    return many / one


async def beside_the_client(
    store: ElasticStore, server: ElasticServer, texts: Sequence[str]
) -> tuple[float, float]:
    alias = store._alias
    ours: list[tuple[float, float]] = []
    bare: list[tuple[float, float]] = []
    for start in range(0, SEARCHES, BLOCK):
        queries = [StoreQuery(texts[(start + n) % len(texts)], 10) for n in range(BLOCK)]
        bodies = [body for query in queries if (body := search_body(query))]

        async def by_store(queries: list[StoreQuery] = queries) -> None:
            for query in queries:
                await store.search(query)

        async def by_client(bodies: list[dict[str, Any]] = bodies) -> None:
            for body in bodies:
                await server.call(
                    lambda client, body=body: client.search(  # type: ignore[misc]
                        index=alias,
                        search_type=SEARCH_TYPE,
                        allow_partial_search_results=False,
                        **body,
                    )
                )

        sides = [(ours, by_store), (bare, by_client)]
        for times, work in sides if start // BLOCK % 2 else reversed(sides):
            wall, cpu = await timed(work)
            times.append((wall / BLOCK, cpu / BLOCK))
    (wall, cpu), (bare_wall, bare_cpu) = (
        [statistics.median(each) for each in zip(*side, strict=True)] for side in (ours, bare)
    )
    print(f"a search: {1000 * wall:.2f} ms, bare {1000 * bare_wall:.2f} ms; "
          f"CPU {1000 * cpu:.2f} ms, bare {1000 * bare_cpu:.2f} ms")  # fmt: skip
    return wall / bare_wall, cpu / bare_cpu


async def ingested(data: Path, file: Path, server: ElasticServer) -> float:
    """Our path, into a new collection."""
    embedder = NoEmbedder()
    collections = Collections(data, embedder, Sample(data / "none"), BM25Only(server))
    await collections.create(NAME)
    seconds, _ = await timed(lambda: ingest([file], NAME, collections))
    passages = (await collections.manifest(NAME)).passages
    await collections.delete(NAME)
    await collections.aclose()
    print(f"ingest: {passages:,} passages in {seconds:.2f} s")
    return seconds


async def bulked(file: Path, server: ElasticServer) -> float:
    """The bare helper, into a new index of the same mapping."""
    await elastic_store.drop(server, BARE)
    await elastic_store.create(server, BARE, "english", replace=True)
    alias = elastic_store.alias_of(BARE)

    async def work() -> None:
        from elasticsearch.helpers import async_bulk

        def documents() -> Iterator[dict[str, Any]]:
            for document in lines(file):
                yield {"_index": alias, "_id": document["id"], "_source": document}

        await server.call(lambda client: async_bulk(client, documents()))
        await server.call(lambda client: client.indices.refresh(index=alias))

    seconds, _ = await timed(work)
    await elastic_store.drop(server, BARE)
    print(f"async_bulk: {seconds:.2f} s")
    return seconds


async def filled(data: Path, file: Path, server: ElasticServer) -> AsyncIterator[ElasticStore]:
    collections = Collections(data, NoEmbedder(), Sample(data / "none"), BM25Only(server))
    await collections.create(NAME)
    await ingest([file], NAME, collections)
    store = (await collections.get(NAME)).bm25
    assert isinstance(store, ElasticStore)
    yield store
    await collections.delete(NAME)
    await collections.aclose()


async def measure(data: Path, url: str, folder: Path) -> dict[str, float]:
    file = data / "2wikimultihopqa" / "corpus.jsonl"
    texts = [value["question"] for value in lines(data / "musique" / "questions.jsonl")]
    server = ElasticServer(url, 30.0)
    ratios: dict[str, float] = {}
    try:
        await elastic_store.drop(server, NAME)
        async for store in filled(folder / "searched", file, server):
            await together(store, texts)
            ratios["msearch"] = await together(store, texts)
            ratios["search wall"], ratios["search CPU"] = await beside_the_client(
                store, server, texts
            )
        pairs = [
            (await ingested(folder / str(number), file, server), await bulked(file, server))
            for number in range(INGESTS + 1)
        ][1:]  # the first warms both
        ours, bare = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios["ingest"] = ours / bare
    finally:
        await server.aclose()
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--url", required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ratios = anyio.run(measure, given.data, given.url, Path(folder))
    for name, ratio in ratios.items():
        met = "met" if ratio <= TARGETS[name] else "MISSED"
        print(f"{name}: {ratio:.2f} (target <= {TARGETS[name]}: {met})")
    raise SystemExit(0 if all(ratio <= TARGETS[name] for name, ratio in ratios.items()) else 1)


if __name__ == "__main__":
    main()
