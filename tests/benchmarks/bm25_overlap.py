"""The same questions on tantivy and on Elasticsearch: do they find the same passages?

    python -m tests.benchmarks.bm25_overlap --data DATA (--url URL | --server RUN_SH)

DATA holds the corpora and questions of MuSiQue, 2WikiMultihopQA, SQuAD and NQ-open (README.md
there); the 300 questions are the 100 of MuSiQue, 100 of SQuAD and 100 of NQ-open, evenly picked,
over all 8,129 passages, each asked in both query shapes (METHODS.md §6 #30). URL is a running
Elasticsearch, RUN_SH a script that starts one (`run.sh DATA 0`, prints `ready PORT`).

Target, for each shape: mean overlap of the ten best >= 0.93. The overlap of one question is |both|
/ the larger of the two lists; where the tenth place is a tie, a passage that ties with it counts as
found (the plain figure is printed too). Every question under 0.7 is printed with what each side
found alone, the words that only one side's analysis makes of it, and the words that another number
of passages has on one side than on the other.

Measured (Elasticsearch 9.5.3): `should` 0.949 (MuSiQue 0.962, SQuAD 0.957, NQ-open 0.929), 8 under
0.7; `best_fields` 0.943 (0.951, 0.958, 0.919), 8 under 0.7. Their causes are two: Porter's stemmer
(Elasticsearch) and Porter2 (tantivy) cut a word differently (used/us, universe with university,
vas/va, marley/marlei, die with dies), or question or passages have an apostrophe, at which tantivy
divides (i'm, i'll, it'll, can't, dj's, Eye's; `you've` holds `you` in tantivy alone).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import anyio
import anyio.to_thread
import orjson

from service.core.domain import ScoredPassage
from service.retrieval.base import QueryShape, StoreQuery
from service.retrieval.documents import PassageRecord, parse_document, passages_of
from service.retrieval.stores import elastic_store
from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.elastic_store import ElasticStore, alias_of, search_body
from service.retrieval.stores.tantivy_store import TantivyStore
from tests.elasticsearch_node import running_elasticsearch

CORPORA = ("musique/corpus.jsonl", "2wikimultihopqa/corpus.jsonl", "squad/corpus.jsonl")
QUESTIONS = ("musique/questions.jsonl", "squad/questions.jsonl", "nq_open/dev.jsonl")
EACH = 100
TOP_K = 10
MANY = 10_000  # more than there are passages
TARGET, LOW = 0.93, 0.7
NAME = "bm25-overlap"


@dataclass(frozen=True)
class Compared:
    question: str
    overlap: float
    plain: float
    only_tantivy: tuple[str, ...]
    only_elasticsearch: tuple[str, ...]
    words: str = ""


def lines(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


def passages(data: Path) -> list[PassageRecord]:
    records = []
    for name in CORPORA:
        for value in lines(data / name):
            document = parse_document({**value, "id": f"{name.split('/')[0]} {value['id']}"})
            records += passages_of(document)
    return records


def questions(data: Path) -> list[str]:
    chosen: list[str] = []
    for name in QUESTIONS:
        every = [value["question"] for value in lines(data / name)]
        chosen += [every[len(every) * number // EACH] for number in range(EACH)]
    return chosen


def compare(
    question: str, tantivy: Sequence[ScoredPassage], elastic: Sequence[ScoredPassage]
) -> Compared:
    """Of lists that are longer than TOP_K, so that ties with the tenth can be seen."""
    ours, theirs = titles(tantivy[:TOP_K]), titles(elastic[:TOP_K])
    tied_ours, tied_theirs = titles(tied(tantivy)), titles(tied(elastic))
    only_ours = [title for key, title in ours.items() if key not in tied_theirs]
    only_theirs = [title for key, title in theirs.items() if key not in tied_ours]
    most = max(len(ours), len(theirs), 1)
    overlap = 1 - max(len(only_ours), len(only_theirs)) / most
    plain = len(ours.keys() & theirs.keys()) / most if ours or theirs else 1.0
    return Compared(question, overlap, plain, tuple(only_ours), tuple(only_theirs))


def tied(hits: Sequence[ScoredPassage]) -> list[ScoredPassage]:
    """The best TOP_K, and those after them with the last one's score."""
    if len(hits) <= TOP_K:
        return list(hits)
    return [hit for hit in hits if hit.score >= hits[TOP_K - 1].score - 1e-5]


def titles(hits: Sequence[ScoredPassage]) -> dict[str, str]:
    return {hit.passage.passage_id: hit.passage.title for hit in hits}


async def measure(data: Path, url: str, folder: Path) -> dict[QueryShape, list[Compared]]:
    records = passages(data)
    server = ElasticServer(url, 30.0)
    run = anyio.to_thread.run_sync
    try:
        tantivy = await run(lambda: TantivyStore(folder, "english"))
        await run(tantivy.replace, [], records)
        await elastic_store.drop(server, NAME)
        elastic = await run(ElasticStore.create, server, NAME, "english")
        await run(elastic.replace, [], records)
        compared: dict[QueryShape, list[Compared]] = {
            shape: [
                await one_question(StoreQuery(question, 3 * TOP_K, shape=shape), tantivy, elastic)
                for question in questions(data)
            ]
            for shape in get_args(QueryShape)
        }
        for each in compared.values():
            for number, one in enumerate(each):
                if one.overlap < LOW:
                    words = await words_apart(one.question, tantivy, server)
                    each[number] = replace(one, words=words)
        await elastic_store.drop(server, NAME)
        await run(tantivy.close)
        return compared
    finally:
        await server.aclose()


async def one_question(query: StoreQuery, tantivy: TantivyStore, elastic: ElasticStore) -> Compared:
    return compare(query.text, await tantivy.search(query), await elastic.search(query))


async def words_apart(question: str, tantivy: TantivyStore, server: ElasticServer) -> str:
    ours = set(tantivy._analyzer.analyze(question))
    answer = await server.call(
        lambda client: client.indices.analyze(analyzer="english", text=question)
    )
    theirs = {token["token"] for token in answer["tokens"]}
    counted = [f"{word} {one}/{other}" for word, one, other in
               [await passages_with(word, tantivy, server) for word in question.split()]
               if abs(one - other) > 0.05 * max(one, other)]  # fmt: skip
    return (
        f"tantivy {' '.join(sorted(ours - theirs)) or '-'}; "
        f"Elasticsearch {' '.join(sorted(theirs - ours)) or '-'}; "
        f"passages that have a word, in either: {', '.join(counted) or 'alike'}"
    )


async def passages_with(
    word: str, tantivy: TantivyStore, server: ElasticServer
) -> tuple[str, int, int]:
    """In how many passages' title or text each side sees the word."""
    query = StoreQuery(word, MANY)
    body = search_body(query)
    if body is None:
        return word, 0, 0
    counted = await server.call(
        lambda client: client.count(index=alias_of(NAME), query=body["query"])
    )
    return word, len(await tantivy.search(query)), counted["count"]


def report(shape: QueryShape, compared: Sequence[Compared]) -> bool:
    print(f"{shape}:")
    for each in sorted(compared, key=lambda each: each.overlap):
        if each.overlap < LOW:
            print(f"{each.overlap:.1f}  {each.question}")
            print(f"     words of one alone:  {each.words}")
            print(f"     tantivy alone:       {'; '.join(each.only_tantivy)}")
            print(f"     Elasticsearch alone: {'; '.join(each.only_elasticsearch)}")
    plain = statistics.mean(each.plain for each in compared)
    low = sum(each.overlap < LOW for each in compared)
    for name, start in zip(QUESTIONS, range(0, len(compared), EACH), strict=True):
        part = statistics.mean(each.overlap for each in compared[start : start + EACH])
        print(f"{name.split('/')[0]}: {part:.3f}")
    mean = statistics.mean(each.overlap for each in compared)
    met = mean >= TARGET
    print(
        f"mean top-{TOP_K} overlap of {len(compared)} questions: {mean:.3f} (target >= {TARGET}: "
        f"{'met' if met else 'MISSED'}), plain {plain:.3f}; "
        f"{low} under {LOW}"
    )
    return met


@contextlib.contextmanager
def node(url: str | None, script: Path | None) -> Iterator[str]:
    if url:
        yield url
    elif script:
        with running_elasticsearch(script) as started:
            yield started.url
    else:
        raise SystemExit("give --url or --server")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--url")
    parser.add_argument("--server", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, node(given.url, given.server) as url:
        compared = anyio.run(measure, given.data, url, Path(folder))
    met = [report(shape, each) for shape, each in compared.items()]
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
