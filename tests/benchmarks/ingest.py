"""Where an ingest's time goes beside embedding.

    python -m tests.benchmarks.ingest [--documents 100000] [--rounds 3]

First: reading, hashing and looking up documents that are all stored already, which must embed
nothing. Then: an ingest of new documents that reads and chunks a batch ahead, against one that
does each batch's work in turn, in alternation; the embedder answers after a fixed time without
work of its own, as a server does.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.sample import Sample
from service.retrieval.documents import Document, passages_of
from service.retrieval.embedding import HashingEmbedder, Vector
from service.retrieval.ingest.pipeline import ingest, take
from service.retrieval.ingest.sources import read_files

WORDS = [f"w{number}" for number in range(5_000)]
NEW = 2_000  # documents of the second part
ANSWER_S = 0.01  # of the embedder for 32 passages


class Waiting(HashingEmbedder):
    """One vector for all, after a fixed time."""

    passages = 0

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        self.passages += len(texts)
        await anyio.sleep(ANSWER_S)
        return [[1.0] + [0.0] * 383 for _ in texts]


def corpus(path: Path, count: int, words: int) -> Path:
    dice = random.Random(0)
    with path.open("w") as file:
        for number in range(count):
            text = " ".join(dice.choices(WORDS, k=words)) + "."
            file.write(json.dumps({"id": f"d{number}", "title": "T", "text": text}) + "\n")
    return path


def documents(file: Path) -> list[Document]:
    return [each.found for each in read_files([file]) if isinstance(each.found, Document)]


async def skip(folder: Path, count: int) -> None:
    file, embedder = corpus(folder / "stored.jsonl", count, 20), Waiting()
    collections = Collections(folder, embedder, Sample(folder / "no-sample"))
    await collections.create("stored")
    collection = await collections.get("stored")
    stored = documents(file)
    for start in range(0, count, 10_000):
        part = stored[start : start + 10_000]
        records = [r for each in part for r in passages_of(each)]
        await anyio.to_thread.run_sync(collection.bm25.replace, [], records)
    began = time.perf_counter()
    report = await ingest([file], "stored", collections)
    seconds = time.perf_counter() - began
    print(
        f"{report.unchanged:,} unchanged documents: {seconds:.2f} s, {count / seconds:,.0f}/s, "
        f"{embedder.passages} passages embedded"
    )
    assert (report.unchanged, report.indexed, embedder.passages) == (count, 0, 0)
    await collections.aclose()


async def timed(folder: Path, file: Path, *, ahead: bool) -> float:
    collections = Collections(folder, Waiting(), Sample(folder / "no-sample"))
    await collections.create("new")
    began = time.perf_counter()
    if ahead:
        await ingest([file], "new", collections)
    else:
        entries = read_files([file])
        async with collections.writing("new") as writer:
            while batch := take(entries):
                await writer.write([e.found for e in batch if isinstance(e.found, Document)])
    seconds = time.perf_counter() - began
    await collections.aclose()
    return seconds


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await skip(folder, given.documents)
        file = corpus(folder / "new.jsonl", NEW, 90)
        for number in range(given.rounds):
            in_turn = await timed(folder / f"turn{number}", file, ahead=False)
            ahead = await timed(folder / f"ahead{number}", file, ahead=True)
            print(
                f"{NEW:,} new documents: in turn {in_turn:.2f} s, a batch ahead {ahead:.2f} s, "
                f"ratio {ahead / in_turn:.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(anyio.run(main))
