"""A collection of 10,000 to 1,000,000 passages, from its ingest to its answers: the table of
deploy/README.md.

    python -m tests.benchmarks.scale --data DATA --out OUT --passages N
    python -m tests.benchmarks.scale … --elasticsearch URL --qdrant URL   (servers, not embedded)

Passages are sentences of the corpora in DATA, three to five drawn anew for each. The first 50,000
(`--embedded`) have the vectors of MiniLM, which OUT keeps; the others have these with noise, so
that a query's vector has near neighbours at any size. Everything else is the product: `ingest` of
a file of JSON Lines, with `retrieval.quantization = "scalar"`, and a process of its own that opens
the collection and searches it with 300 questions of MuSiQue, SQuAD and NQ, whose embedding is
not counted.

Prints passages a second, the memory of each process (anonymous; resident with mapped files), how
long opening takes, p50 and p99 of each retriever, recall@10 of the dense side against all vectors,
and the disk. `--kill` ends the ingest with SIGKILL in its midst, and starts it again.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import numpy as np

from service.core.settings import Settings, load_settings
from service.retrieval.base import EVERYTHING, SearchRequest
from service.retrieval.embedding.contract import PRESETS, Embedder, Vector
from service.retrieval.embedding.embedders import minilm_embedder
from service.retrieval.factory import open_retrieval
from service.retrieval.ingest.pipeline import ingest
from service.text.sentences import sentences
from service.workshop.rows import read_lines

NAME: Final = "scale"
CORPORA: Final = ("musique/corpus.jsonl", "2wikimultihopqa/corpus.jsonl", "squad/corpus.jsonl")
QUESTIONS: Final = ("musique/questions.jsonl", "squad/questions.jsonl", "nq_open/dev.jsonl")
EACH: Final = 100  # questions of each set, spread over it
NOISE: Final = 0.5  # length of the noise added to a vector of length 1
BATCH: Final = 512
WARM: Final = 60  # searches that are not counted


def questions(data: Path) -> list[str]:
    chosen: list[str] = []
    for name in QUESTIONS:
        every = [value["question"] for value in read_lines(data / name)]
        chosen += [every[len(every) * number // EACH] for number in range(EACH)]
    return chosen


def make_corpus(data: Path, file: Path, count: int) -> None:
    chosen = random.Random(0)
    pool = [
        value["text"][start:end]
        for name in CORPORA
        for value in read_lines(data / name)
        for start, end in sentences(value["text"])
    ]
    with file.open("w", encoding="utf-8") as written:
        for number in range(count):
            text = " ".join(chosen.sample(pool, chosen.randint(3, 5)))
            row = {"id": f"p{number}", "title": f"Passage {number}", "text": text}
            written.write(json.dumps(row) + "\n")


class AtHand(Embedder):
    """Vectors by the number in a passage's title, and those of the queries by their texts. The
    vector of a passage of several parts is that of the whole."""

    def __init__(self, base: Any, queries: dict[str, Vector]) -> None:
        self.contract = PRESETS["minilm"]
        self._base, self._queries = base, queries

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [self._queries.get(text) or self._vector(text) for text in texts]

    def _vector(self, text: str) -> Vector:
        return vector(self._base, int(text.split(".", 1)[0].split()[1])).tolist()


def vector(base: Any, number: int) -> Any:
    if number < len(base):
        return base[number]
    noise = np.random.default_rng(number).normal(size=base.shape[1]).astype(np.float32)
    found = base[number % len(base)] + NOISE * noise / np.linalg.norm(noise)
    return found / np.linalg.norm(found)


def kept_vectors(texts: Sequence[str], file: Path) -> Any:
    """The vectors of texts, which the file keeps."""
    if not file.exists():
        begin = time.perf_counter()
        np.save(file, np.array(anyio.run(embed, texts), np.float32))
        print(f"{len(texts):,} vectors: {len(texts) / (time.perf_counter() - begin):.0f} a second")
    return np.load(file, mmap_mode="r")


async def embed(texts: Sequence[str]) -> list[Vector]:
    embedder, found = minilm_embedder(PRESETS["minilm"], 2), list[Vector]()
    for at in range(0, len(texts), BATCH):
        found += await embedder.embed_passages(texts[at : at + BATCH])
    return found


def first_texts(file: Path, count: int) -> list[str]:
    with file.open(encoding="utf-8") as rows:
        values = [json.loads(row) for row, _ in zip(rows, range(count), strict=False)]
    return [f"{value['title']}. {value['text']}" for value in values]


def memory() -> str:
    fields = dict(
        line.split(":")
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":" in line
    )
    anonymous, resident = (int(fields[name].split()[0]) // 1024 for name in ("RssAnon", "VmRSS"))
    return f"{anonymous:,} MB anonymous, {resident:,} MB resident"


async def fill(settings: Settings, file: Path, embedder: AtHand, count: int) -> None:
    async with open_retrieval(settings, embedder=embedder) as stores:
        collections = stores.collections
        if NAME not in await collections.names():
            await collections.create(NAME)
        begin = time.perf_counter()
        report = await ingest([file], NAME, collections)
        seconds = time.perf_counter() - begin
        print(
            f"ingest: {report.indexed:,} of {count:,} documents in {seconds:.0f} s, "
            f"{report.indexed / seconds:.0f} a second; {memory()}",
            flush=True,
        )
        assert not report.failed, report.failures
    print(f"ingest and graph: {time.perf_counter() - begin:.0f} s; {memory()}", flush=True)


async def search(settings: Settings, embedder: AtHand, asked: Sequence[str], count: int) -> None:
    begin = time.perf_counter()
    async with open_retrieval(settings, embedder=embedder) as stores:
        first = SearchRequest(asked[0], 10, NAME, "hybrid", principals=EVERYTHING)
        await stores.retriever.search(first)
        print(f"open and first search: {time.perf_counter() - begin:.2f} s; {memory()}")
        info = await stores.collections.info(NAME)
        print(f"passages: {info.passages:,} of {count:,} documents")
        for retriever in ("bm25", "dense", "hybrid"):
            times, found = list[float](), list[list[str]]()
            for question in asked:
                request = SearchRequest(question, 10, NAME, retriever, principals=EVERYTHING)
                begin = time.perf_counter()
                result = await stores.retriever.search(request)
                times.append((time.perf_counter() - begin) * 1000)
                found.append([hit.passage.passage_id.split("#")[0] for hit in result.passages])
                assert not result.missing, result.missing
            p50, p99 = (float(np.percentile(times[WARM:], share)) for share in (50, 99))
            print(f"{retriever}: p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
            if retriever == "dense":
                ours = found
        print(f"searched: {memory()}", flush=True)
    print(f"recall@10 of dense: {await recall(embedder, asked, ours, count):.3f}")


async def recall(
    embedder: AtHand, asked: Sequence[str], found: Sequence[Sequence[str]], count: int
) -> float:
    queries = np.array(await embedder.embed_queries(asked), np.float32)
    best = np.full((len(asked), 10), -2.0, np.float32)
    names = np.zeros((len(asked), 10), int)
    for at in range(0, count, 10_000):
        numbers = np.arange(at, min(at + 10_000, count))
        scores = queries @ np.array([vector(embedder._base, n) for n in numbers]).T
        both = np.concatenate([best, scores], axis=1)
        known = np.concatenate([names, np.tile(numbers, (len(asked), 1))], axis=1)
        order = np.argsort(-both, axis=1)[:, :10]
        best, names = (np.take_along_axis(each, order, axis=1) for each in (both, known))
    # Parts of one document have the same vector.
    shares = [
        len(set(ours) & {f"p{n}" for n in exact}) / len(set(ours))
        for ours, exact in zip(found, names, strict=True)
    ]
    return sum(shares) / len(asked)


def step(given: argparse.Namespace) -> None:
    """One process: `fill` or `search`."""
    file = given.out / f"corpus-{given.passages}.jsonl"
    asked = questions(given.data)
    base = kept_vectors(first_texts(file, given.embedded), given.out / f"{given.embedded}.npy")
    queries = kept_vectors(asked, given.out / "queries.npy")
    embedder = AtHand(base, dict(zip(asked, queries.tolist(), strict=True)))
    servers = {"elasticsearch_url": given.elasticsearch, "qdrant_url": given.qdrant}
    retrieval = {"quantization": "scalar", **{k: v for k, v in servers.items() if v}}
    kind = "servers" if given.qdrant else "embedded"
    folder = given.out / f"{kind}-{given.passages}"
    settings = load_settings(None, {"data_dir": folder, "retrieval": retrieval})
    if given.step == "fill":
        anyio.run(fill, settings, file, embedder, given.passages)
    else:
        anyio.run(search, settings, embedder, asked, given.passages)
        disk = subprocess.run(["du", "-sm", folder], capture_output=True, text=True, check=True)
        print(f"disk: {disk.stdout.split()[0]} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora and questions")
    parser.add_argument("--out", type=Path, required=True, help="folder to keep")
    parser.add_argument("--passages", type=int, default=10_000)
    parser.add_argument("--embedded", type=int, default=50_000, help="vectors that are real")
    parser.add_argument("--elasticsearch")
    parser.add_argument("--qdrant")
    parser.add_argument("--kill", type=float, help="seconds of the ingest after which to kill it")
    parser.add_argument("--step", choices=("fill", "search"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.embedded = min(given.embedded, given.passages)
    if given.step:
        step(given)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / f"corpus-{given.passages}.jsonl"
    if not file.exists():
        make_corpus(given.data, file, given.passages)
    command = [sys.executable, "-m", "tests.benchmarks.scale", *sys.argv[1:], "--step"]
    if given.kill:
        with subprocess.Popen([*command, "fill"]) as process:
            time.sleep(given.kill)
            process.send_signal(signal.SIGKILL)
        print(f"killed after {given.kill:.0f} s", flush=True)
    for name in ("fill", "search"):
        subprocess.run([*command, name], check=True)


if __name__ == "__main__":
    main()
