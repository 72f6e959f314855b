"""Our searches in the embedded stores beside the bare libraries' calls, at 100,000 passages.

    python -m tests.benchmarks.embedded_stores --data DATA [--passages N]

DATA holds the corpora and questions of MuSiQue, 2WikiMultihopQA and SQuAD. Their 8,129 passages are
repeated with varied words until there are N (default 100,000). Vectors are 384 numbers around 500
centres: the embedding of a query is no part of a search here.

Ours is `TantivyStore.search` and `QdrantEdgeStore.search`, bare is `searcher.search` with a query
made of the same words and the documents' stored fields read, and `shard.query` with the payload.
Both answer the same ten passages, in turns, in one process. Target: p50 and p99 <= 1.3 x bare.
Printed besides: recall@10 of the graph against exact search (target >= 0.97), how long its building
took, how long the event loop stood still meanwhile, and the memory of the process.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import orjson
import qdrant_edge as edge
from tantivy import Occur, Query

from service.core.domain import Passage
from service.retrieval.base import SearchRequest
from service.retrieval.documents import PassageRecord, parse_document, passages_of
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.stores.qdrant_edge_store import QdrantEdgeStore
from service.retrieval.stores.records import PASSAGE_FIELDS, query_words
from service.retrieval.stores.tantivy_store import TantivyStore

CORPORA = ("musique/corpus.jsonl", "2wikimultihopqa/corpus.jsonl", "squad/corpus.jsonl")
QUESTIONS = ("musique/questions.jsonl", "squad/questions.jsonl", "nq_open/dev.jsonl")
EACH = 100
DIMENSION, CENTRES = 384, 500
BATCH = 2_000
QUERIES, TOP_K = 300, 10
TARGET, LEAST_RECALL = 1.3, 0.97


def lines(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


def passages(data: Path) -> list[PassageRecord]:
    return [
        record
        for name in CORPORA
        for value in lines(data / name)
        for record in passages_of(
            parse_document({**value, "id": f"{name.split('/')[0]} {value['id']}"})
        )
    ]


def questions(data: Path) -> list[str]:
    chosen: list[str] = []
    for name in QUESTIONS:
        every = [value["question"] for value in lines(data / name)]
        chosen += [every[len(every) * number // EACH] for number in range(EACH)]
    return chosen


def varied(data: Path, count: int) -> Iterator[PassageRecord]:
    """The corpora again and again; from the second time on one word in seven is another."""
    records = passages(data)
    random = np.random.default_rng(0)
    words = [word for record in records[:2_000] for word in record.passage.text.split()]
    for number in range(count):
        record = records[number % len(records)]
        text = record.passage.text.split(" ")
        if number >= len(records):
            for place in range(number % 7, len(text), 7):
                text[place] = words[random.integers(len(words))]
        own = f"p{number}"
        passage = Passage(own, record.passage.title, " ".join(text))
        yield PassageRecord(passage, own, str(number), 0, 1)


def clustered(count: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(CENTRES, DIMENSION))
    found = centres[random.integers(0, CENTRES, count)] + random.normal(size=(count, DIMENSION))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def memory() -> str:
    """Of this process: now, and at most."""
    now = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return f"{now / 2**20:,.0f} MiB, at most {peak / 2**20:,.0f}"


async def fill(data: Path, count: int, bm25: TantivyStore, dense: QdrantEdgeStore) -> None:
    vectors = clustered(count, seed=1)
    started, batch = time.perf_counter(), []
    for number, record in enumerate(varied(data, count), 1):
        batch.append(record)
        if len(batch) == BATCH or number == count:
            await anyio.to_thread.run_sync(bm25.replace, [], batch)
            own = vectors[number - len(batch) : number].tolist()
            await anyio.to_thread.run_sync(dense.upsert, batch, own)
            batch = []
    print(f"{count:,} passages in both stores: {time.perf_counter() - started:.0f} s")


async def graph(dense: QdrantEdgeStore) -> None:
    """Build it, and watch the event loop."""
    worst, last = 0.0, time.perf_counter()
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            nonlocal worst, last
            while True:
                await anyio.sleep(0.001)
                now = time.perf_counter()
                worst, last = max(worst, now - last), now

        group.start_soon(watch)
        started = time.perf_counter()
        await dense.optimize()
        seconds = time.perf_counter() - started
        group.cancel_scope.cancel()
    info = dense._shard.info()
    print(
        f"graph over {info.indexed_vectors_count:,} vectors: {seconds:.0f} s; the event loop "
        f"stood still for {1000 * worst:.0f} ms at most"
    )


def bare_bm25(store: TantivyStore, text: str) -> Callable[[], Any]:
    words = store._analyzer.analyze(" ".join(query_words(text)))
    searcher, schema = store._index.searcher(), store._schema
    terms = [
        (Occur.Should, Query.term_query(schema, field, word, "freq"))
        for field in ("title", "text")
        for word in words
    ]
    query = Query.boolean_query(terms)

    def search() -> Any:
        hits = searcher.search(query, TOP_K, count=False).hits
        return [orjson.loads(bytes(searcher.doc(at).get_first("record"))) for _, at in hits]

    return search


def bare_dense(
    store: QdrantEdgeStore, vector: list[float], exact: bool = False
) -> Callable[[], Any]:
    request = edge.QueryRequest(
        limit=TOP_K,
        query=edge.Query.Nearest(vector),
        with_payload=PASSAGE_FIELDS,
        params=edge.SearchParams(exact=exact),
    )
    return lambda: store._shard.query(request)


async def beside(
    name: str, pairs: list[tuple[Callable[[], Awaitable[Any]], Callable[[], Any]]]
) -> bool:
    """Ours and the bare call of each query, in turns; the first fifth warms."""
    ours, bare = [], []
    for number, (own, call) in enumerate(pairs):
        for side in ("ours", "bare") if number % 2 else ("bare", "ours"):
            started = time.perf_counter()
            if side == "ours":
                await own()
                ours.append(time.perf_counter() - started)
            else:
                call()
                bare.append(time.perf_counter() - started)
    ours, bare = ours[len(pairs) // 5 :], bare[len(pairs) // 5 :]
    ratios = {}
    for label, share in (("p50", 50), ("p99", 99)):
        one, other = (1000 * float(np.percentile(side, share)) for side in (ours, bare))
        ratios[label] = one / other
        print(f"{name} {label}: {one:.2f} ms, bare {other:.2f} ms, ratio {one / other:.2f}")
    return max(ratios.values()) <= TARGET


async def measure(data: Path, count: int, folder: Path) -> bool:
    contract = EmbeddingContract(model="none", dimension=DIMENSION)
    bm25 = TantivyStore(folder / "bm25", "english")
    dense = QdrantEdgeStore(folder / "dense", contract)
    print(f"empty: {memory()}")
    await fill(data, count, bm25, dense)
    print(f"filled: {memory()}")
    await graph(dense)
    texts = questions(data)[:QUERIES]
    queries = [vector.tolist() for vector in clustered(QUERIES, seed=2)]
    near = [{point.id for point in bare_dense(dense, query)()} for query in queries]
    exact = [{point.id for point in bare_dense(dense, query, True)()} for query in queries]
    recall = statistics.mean(len(a & b) / TOP_K for a, b in zip(near, exact, strict=True))
    print(f"recall@{TOP_K} of the graph: {recall:.3f} (target >= {LEAST_RECALL})")
    lexical: list[tuple[Callable[[], Awaitable[Any]], Callable[[], Any]]] = [
        (lambda text=text: bm25.search(SearchRequest(text, TOP_K, "c")), bare_bm25(bm25, text))  # type: ignore[misc]
        for text in texts
    ]
    vectors: list[tuple[Callable[[], Awaitable[Any]], Callable[[], Any]]] = [
        (
            lambda query=query: dense.search(SearchRequest("", TOP_K, "c", vector=query)),
            bare_dense(dense, query),
        )  # type: ignore[misc]
        for query in queries
    ]
    met = [await beside("BM25", lexical), await beside("dense", vectors), recall >= LEAST_RECALL]
    print(f"searched: {memory()}")
    bm25.close()
    dense.close()
    return all(met)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        met = anyio.run(measure, given.data, given.passages, Path(folder))
    print(f"targets (<= {TARGET}, recall >= {LEAST_RECALL}): {'met' if met else 'MISSED'}")
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
