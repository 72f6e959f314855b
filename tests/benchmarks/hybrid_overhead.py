"""What a hybrid search costs beyond its slower store.

    python -m tests.benchmarks.hybrid_overhead --data DATA (--url URL | --server RUN_SH)

Two settings, each target <= 1.15. (1) One question at a time on a real Elasticsearch and
qdrant-edge: the 6,119 passages of 2WikiMultihopQA, 100 questions of MuSiQue, vectors made by
hashing and remembered beforehand. A round asks each question of all three in turn; the slower store
is the one with the larger median, asked for as many passages as hybrid asks it. A bare `gather` of
both stores beside it is what the machine can do: hybrid's ratio to that is the service's own part,
of which CPU time is told, too. (2) Sixteen
questions at a time on stores that answer after 20 and 30 ms: the yardstick is the store of 30 ms
alone, asked sixteen at a time. Ratios are medians over rounds; all sides of a ratio run in one
process.

DATA holds the corpora (README.md there); URL is a running Elasticsearch, RUN_SH a script that
starts one (`run.sh DATA 0`, prints `ready PORT`).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from service.core.domain import Passage, ScoredPassage
from service.core.settings import RetrievalSettings
from service.retrieval.base import SearchRequest, StoreQuery
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.lifecycle import Collection
from service.retrieval.collections.sample import Sample
from service.retrieval.embedding import HashingEmbedder
from service.retrieval.ingest.pipeline import ingest
from service.retrieval.search.hybrid import LEAST_DEPTH, HybridRetriever
from service.retrieval.stores.elastic_server import ElasticServer
from tests.elasticsearch_node import running_elasticsearch
from tests.unit.retrieval.worlds import FakeCollection

TARGET = 1.15
NAME = "hybrid-overhead"
TOP_K = 10
QUESTIONS = 100
ROUNDS = 7
LANES, REPEATS = 16, 20
FAST_S, SLOW_S = 0.020, 0.030
Search = Callable[[], Awaitable[object]]


@contextmanager
def node(url: str | None, script: Path | None) -> Iterator[str]:
    if url:
        yield url
    elif script:
        with running_elasticsearch(script) as started:
            yield started.url
    else:
        raise SystemExit("give --url or --server")


async def seconds(search: Search) -> float:
    started = time.perf_counter()
    await search()
    return time.perf_counter() - started


@dataclass(frozen=True)
class Round:
    """Medians of one round, in seconds."""

    hybrid: float
    bm25: float
    dense: float
    both: float = 0.0
    own_cpu: float = 0.0  # of hybrid beside that of `both`, in this process

    @property
    def ratio(self) -> float:
        return self.hybrid / max(self.bm25, self.dense)


async def one_at_a_time(data: Path, url: str, folder: Path) -> list[Round]:
    embedder = HashingEmbedder()
    backends = Backends(ElasticServer(url, 30.0))
    collections = Collections(folder, embedder, Sample(folder / "none"), backends)
    corpus = data / "2wikimultihopqa" / "corpus.jsonl"
    lines = (data / "musique" / "questions.jsonl").read_bytes().splitlines()[:QUESTIONS]
    questions = [orjson.loads(line)["question"] for line in lines]
    try:
        await backends.drop(NAME)
        await collections.create(NAME)
        await ingest([corpus], NAME, collections)
        settings = RetrievalSettings(embedding_model="hashing")
        retriever = HybridRetriever(collections, embedder, settings)
        vectors = await embedder.embed_queries(questions)
        async with collections.lend(NAME) as stores:
            rounds = [
                await one_round(retriever, stores, questions, vectors) for _ in range(ROUNDS + 1)
            ]
        await collections.delete(NAME)
        return rounds[1:]  # the first one warms up, and fills the cache of vectors
    finally:
        await collections.aclose()
        await backends.aclose()


async def one_round(
    retriever: HybridRetriever,
    stores: Collection,
    questions: Sequence[str],
    vectors: Sequence[Sequence[float]],
) -> Round:
    took: list[tuple[float, ...]] = []
    for question, vector in zip(questions, vectors, strict=True):
        request = SearchRequest(question, TOP_K, NAME)
        query = StoreQuery(question, max(LEAST_DEPTH, 3 * TOP_K), vector)

        def both(query: StoreQuery = query) -> Awaitable[object]:
            return asyncio.gather(stores.bm25.search(query), stores.dense.search(query))

        began = time.process_time()
        hybrid = await seconds(lambda request=request: retriever.search(request))
        between = time.process_time()
        together = await seconds(both)
        ended = time.process_time()
        took.append(
            (
                hybrid,
                await seconds(lambda query=query: stores.bm25.search(query)),
                await seconds(lambda query=query: stores.dense.search(query)),
                together,
                between - began - (ended - between),
            )
        )
    return Round(*(statistics.median(column) for column in zip(*took, strict=True)))


class FixedStore:
    """Answers with 30 passages after a fixed time."""

    def __init__(self, backend: str, delay_s: float) -> None:
        self.backend = backend
        self._delay_s = delay_s
        self._hits = [
            ScoredPassage(Passage(f"{backend}{n}", "", "text"), n, 1 / n) for n in range(1, 31)
        ]

    async def search(self, query: StoreQuery) -> list[ScoredPassage]:
        await asyncio.sleep(self._delay_s)
        return self._hits


class FixedCatalog:
    """One collection of two such stores."""

    def __init__(self) -> None:
        self.stores = FakeCollection(
            FixedStore("elasticsearch", SLOW_S), FixedStore("qdrant", FAST_S),
            HashingEmbedder.contract,
        )  # fmt: skip

    async def resolve(self, name: str | None) -> str:
        return name or NAME

    async def metadata_fields(self, name: str) -> Sequence[str]:
        return ()

    @asynccontextmanager
    async def lend(self, name: str) -> AsyncIterator[FakeCollection]:
        yield self.stores

    async def aclose(self) -> None:
        return


async def in_lanes(search: Search) -> float:
    """Median seconds of one search, LANES at a time."""

    async def lane() -> list[float]:
        return [await seconds(search) for _ in range(REPEATS)]

    async with asyncio.TaskGroup() as group:
        lanes = [group.create_task(lane()) for _ in range(LANES)]
    return statistics.median(took for lane in lanes for took in lane.result())


async def sixteen_at_a_time() -> list[Round]:
    catalog = FixedCatalog()
    settings = RetrievalSettings(embedding_model="hashing")
    retriever = HybridRetriever(catalog, HashingEmbedder(), settings)
    query = StoreQuery("Who composed Norma?", LEAST_DEPTH)
    request = SearchRequest(query.text, TOP_K, NAME)
    searches: tuple[Search, ...] = (
        lambda: retriever.search(request),
        lambda: catalog.stores.bm25.search(query),
        lambda: catalog.stores.dense.search(query),
    )
    await retriever.search(request)
    return [Round(*[await in_lanes(search) for search in searches]) for _ in range(ROUNDS)]


def report(name: str, rounds: Sequence[Round], stores: tuple[str, str]) -> bool:
    ratio = statistics.median(each.ratio for each in rounds)
    hybrid, bm25, dense = (
        1000 * statistics.median(getattr(each, field) for each in rounds)
        for field in ("hybrid", "bm25", "dense")
    )
    met = ratio <= TARGET
    print(
        f"{name}: hybrid {hybrid:.2f} ms, {stores[0]} {bm25:.2f} ms, {stores[1]} {dense:.2f} ms; "
        f"hybrid / slower store {ratio:.3f} of medians, rounds "
        f"{min(each.ratio for each in rounds):.3f} to {max(each.ratio for each in rounds):.3f} "
        f"(target <= {TARGET}: {'met' if met else 'MISSED'})"
    )
    if all(each.both for each in rounds):
        both, own = (
            1000 * statistics.median(getattr(each, field) for each in rounds)
            for field in ("both", "own_cpu")
        )
        own_ratio = statistics.median(each.hybrid / each.both for each in rounds)
        print(
            f"  both stores at once, bare: {both:.2f} ms, {both / max(bm25, dense):.3f} of the "
            f"slower; hybrid / both {own_ratio:.3f}, its own CPU {own:.2f} ms"
        )
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--url")
    parser.add_argument("--server", type=Path)
    given = parser.parse_args()
    met = report("16 at a time", asyncio.run(sixteen_at_a_time()), ("30 ms", "20 ms"))
    with tempfile.TemporaryDirectory() as folder, node(given.url, given.server) as url:
        rounds = asyncio.run(one_at_a_time(given.data, url, Path(folder)))
    met &= report("1 at a time", rounds, ("Elasticsearch", "qdrant-edge"))
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
