"""What it costs a hybrid search that not everyone may see every document.

    python -m tests.benchmarks.principals --data DATA [--copies N] [--elasticsearch URL]
        [--qdrant URL]

The corpora of MuSiQue, 2WikiMultihopQA and SQuAD (8,129 passages), N times (default 1), in the
embedded stores or on servers, and 200 questions of MuSiQue, twice: in a collection without
`access`, and in one of which half of the documents are for one to three of 20 groups. Each question
is embedded as long as the shipped model takes, although the vectors are those of hashing, and, to
show what the filter alone costs, with its vector remembered. It is asked by someone who sees
everything, so that nothing is filtered, and by one of three groups, in turns, six times, of which
the shortest counts. Target: median of the ratios of a question <= 1.10."""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import orjson

from service.core.settings import RetrievalSettings
from service.retrieval.base import EVERYTHING, Principals, SearchRequest
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.sample import Sample
from service.retrieval.embedding import HashingEmbedder, open_embedder
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.qdrant_server import QdrantServer
from tests.benchmarks.embedded_stores import CORPORA, lines
from tests.support.documents import ingest_documents

TARGET = 1.10
QUESTIONS, ROUNDS, TOP_K = 200, 6, 10
GROUPS = [f"group {n}" for n in range(20)]
ASKING: Principals = frozenset(GROUPS[:3])


def documents(data: Path, copies: int, *, restricted: bool) -> list[dict[str, Any]]:
    drawn, made = random.Random(34), list[dict[str, Any]]()
    for copy in range(copies):
        for name in CORPORA:
            for value in lines(data / name):
                one = {key: value[key] for key in ("title", "text")}
                one["id"] = f"{name}-{copy}-{len(made)}"
                if restricted and drawn.random() < 0.5:
                    one["access"] = drawn.sample(GROUPS, drawn.randint(1, 3))
                made.append(one)
    return made


class AsLongAsMiniLM(HashingEmbedder):
    """Hashes passages, and hashes queries in the time of the shipped model."""

    def __init__(self) -> None:
        self._shipped = open_embedder(RetrievalSettings())

    async def embed_queries(self, texts: Sequence[str]) -> list[list[float]]:
        await self._shipped.embed_queries(texts)
        return await super().embed_queries(texts)


async def measured(args: argparse.Namespace, folder: Path, *, restricted: bool) -> list[float]:
    embedder = AsLongAsMiniLM()
    backends = Backends(
        ElasticServer(args.elasticsearch, 60.0) if args.elasticsearch else None,
        QdrantServer(args.qdrant, 60.0) if args.qdrant else None,
    )
    name = f"principals-{restricted}".lower()
    collections = Collections(folder, embedder, Sample(folder / "none"), backends)
    questions = lines(args.data / "musique" / "questions.jsonl")[:QUESTIONS]
    try:
        await backends.drop(name)
        await collections.create(name)
        made = documents(args.data, args.copies, restricted=restricted)
        await ingest_documents(made, name, collections)
        retriever = HybridRetriever(
            collections, embedder, RetrievalSettings(embedding_model="hashing")
        )

        ratios = []
        for remembered in (False, True):

            async def seconds(
                question: str, principals: Principals, remembered: bool = remembered
            ) -> float:
                if not remembered:
                    retriever._embedding._known.clear()
                request = SearchRequest(question, TOP_K, name, principals=principals)
                started = time.perf_counter()
                await retriever.search(request)
                return time.perf_counter() - started

            kind = "half restricted" if restricted else "nothing restricted"
            kind += ", vectors remembered" if remembered else ""
            ratios.append(await compared(kind, seconds, [row["question"] for row in questions]))
        await collections.delete(name)
    finally:
        await collections.aclose()
        await backends.aclose()
    return ratios


async def compared(
    kind: str, seconds: Callable[[str, Principals], Awaitable[float]], questions: Sequence[str]
) -> float:
    took: dict[str, list[tuple[float, float]]] = {}
    for number in range(ROUNDS + 2):
        for asked in questions:
            if number % 2:
                pair = (await seconds(asked, EVERYTHING), await seconds(asked, ASKING))
            else:  # the second may find what the first has brought into the caches
                some = await seconds(asked, ASKING)
                pair = (await seconds(asked, EVERYTHING), some)
            if number > 1:  # the first rounds warm up
                took.setdefault(asked, []).append(pair)
    pairs = [tuple(map(min, zip(*each, strict=True))) for each in took.values()]
    everything, some = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"{kind}: {everything:.3f} ms without, {some:.3f} ms with principals, ratio {ratio:.3f}")
    return ratio


async def main(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ratios = [
            await measured(args, Path(folder, str(restricted)), restricted=restricted)
            for restricted in (False, True)
        ]
    met = all(searched <= TARGET for searched, _ in ratios)
    print(orjson.dumps({"ratios": ratios, "met": met}).decode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--elasticsearch")
    parser.add_argument("--qdrant")
    anyio.run(main, parser.parse_args())
