"""Recall@2/5/10 of MuSiQue's gold passages: BM25, dense and hybrid, by the product's retriever.

    python -m tests.benchmarks.recall --data DATA [--work FOLDER] [--tune]

DATA holds musique/corpus.jsonl and questions.jsonl. FOLDER keeps the ingested collection for the
next run. The questions that `service.workshop.facts.splits` holds out are printed apart; `--tune`
prints what settings of the fusion give on the others, and nothing else is ever tuned on.

The recall of one question is the share of its gold passages among the first k. Elsewhere BM25S,
MiniLM and RRF gave 0.56, 0.70 and 0.70 at 10 on these 100 questions.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import orjson

from service.core.domain import ScoredPassage
from service.core.settings import RetrievalSettings, Settings
from service.retrieval.base import SearchRequest
from service.retrieval.factory import EmbeddedStores, open_embedded
from service.retrieval.ingest.pipeline import ingest
from service.retrieval.search.fusion import fuse
from service.retrieval.search.hybrid import LEAST_DEPTH
from service.workshop.facts.splits import is_held_out

Ranking = Sequence[ScoredPassage]
Name = Literal["bm25", "dense", "hybrid"]

NAME = "musique"
CUTS = (2, 5, 10)
ELSEWHERE: Mapping[Name, float] = {"bm25": 0.56, "dense": 0.70, "hybrid": 0.70}
WEIGHTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class Question:
    text: str
    gold: frozenset[str]

    @property
    def held_out(self) -> bool:
        return is_held_out(self.text)


def questions(data: Path) -> list[Question]:
    rows = (data / NAME / "questions.jsonl").read_bytes().splitlines()
    return [
        Question(row["question"], frozenset(row["supporting_passage_ids"]))
        for row in map(orjson.loads, rows)
    ]


def recall(question: Question, ranking: Ranking, cut: int) -> float:
    """Of documents: a long one is several passages, `id#1` …"""
    found = {hit.passage.passage_id.split("#")[0] for hit in ranking[:cut]}
    return len(found & question.gold) / len(question.gold)


def line(asked: Sequence[Question], rankings: Mapping[str, Ranking]) -> str:
    means = [
        statistics.fmean(recall(each, rankings[each.text], cut) for each in asked) for cut in CUTS
    ]
    return "  ".join(f"{mean:.3f}" for mean in means)


async def rankings(
    stores: EmbeddedStores, asked: Sequence[Question], retriever: Name, depth: int
) -> dict[str, Ranking]:
    requests = [SearchRequest(each.text, depth, NAME, retriever) for each in asked]
    results = [await stores.retriever.search(request) for request in requests]
    return {each.text: result.passages for each, result in zip(asked, results, strict=True)}


async def measure(data: Path, work: Path, tune: bool) -> bool:
    asked = questions(data)
    settings = Settings(data_dir=work, retrieval=RetrievalSettings(timeout_s=120))
    async with open_embedded(settings) as stores:
        await stores.collections.create(NAME)
        await ingest([data / NAME / "corpus.jsonl"], NAME, stores.collections)
        if tune:
            await print_grid(stores, [each for each in asked if not each.held_out])
        return await print_recall(stores, asked)


async def print_recall(stores: EmbeddedStores, asked: Sequence[Question]) -> bool:
    held = [each for each in asked if each.held_out]
    reached = True
    print(
        f"recall@{'/'.join(map(str, CUTS))}      all {len(asked)}             held out {len(held)}"
    )
    for name, elsewhere in ELSEWHERE.items():
        found = await rankings(stores, asked, name, max(CUTS))
        own = statistics.fmean(recall(each, found[each.text], max(CUTS)) for each in asked)
        reached &= own >= elsewhere
        print(f"{name:8}  {line(asked, found)}   {line(held, found)}   elsewhere {elsewhere:.2f}")
    return reached


async def print_grid(stores: EmbeddedStores, asked: Sequence[Question]) -> None:
    """Of the questions that are not held out; fused as `hybrid` does."""
    bm25 = await rankings(stores, asked, "bm25", LEAST_DEPTH)
    dense = await rankings(stores, asked, "dense", LEAST_DEPTH)
    grid: list[dict[str, Any]] = [{"fusion": "rrf"}]
    grid += [{"fusion": "weighted", "dense_weight": weight} for weight in WEIGHTS]
    print(f"settings on the {len(asked)} questions that are not held out")
    for values in grid:
        join = joined(bm25, dense, RetrievalSettings(**values))
        print(f"{line(asked, join)}   {values}")


def joined(
    bm25: Mapping[str, Ranking], dense: Mapping[str, Ranking], settings: RetrievalSettings
) -> dict[str, Ranking]:
    return {text: fuse(bm25[text], dense[text], settings, max(CUTS)) for text in bm25}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--tune", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reached = anyio.run(measure, given.data, given.work or Path(folder), given.tune)
    raise SystemExit(0 if reached else 1)


if __name__ == "__main__":
    main()
