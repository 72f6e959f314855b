"""Supporting-passage recall@10 of EfficientRAG's pool against one hybrid search's.

    python -m tests.benchmarks.efficientrag_recall --data DATA [--n 200] [--work FOLDER]
        [--labeler FOLDER --filter FOLDER]

Bridges and comparisons synthesised from held-out passages (`made_up.jsonl`: real
names, wordings that never train) over all passages of the 2Wiki corpus, and MuSiQue's 100 questions
over its own, those that are held out apart. The loop runs as it is served, but the reader: one
scripted call. The search's first 10 passages are compared with the first 10 of the pool, in its own
order: by hop, then by rank, none twice. The aim is 1.25 on bridges. FOLDER keeps the collections.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import orjson

from service.answer.events import AnswerReady
from service.answer.request import AnswerRequest
from service.core.domain import Answer
from service.core.settings import Settings
from service.core.settings.loops import EfficientragSettings
from service.retrieval.base import SearchRequest, anyone
from service.retrieval.ingest.pipeline import ingest
from service.runtime import Runtime, open_runtime
from service.workshop.facts.splits import is_held_out
from tests.benchmarks.made_up import CORPUS, made_up_questions
from tests.support.scripted import ScriptedGenerator, ScriptStep

CUT = 10
AIM = 1.25
WIKI, MUSIQUE = "wiki", "musique"


@dataclass(frozen=True)
class Asked:
    kind: str
    question: str
    gold: frozenset[str]


@dataclass(frozen=True)
class Found:
    """Of one question: recall of the search and of the loop, and what the loop cost."""

    kind: str
    searched: float
    looped: float
    pool: int
    retrievals: int
    llm_calls: int


def synthesised(data: Path, size: int) -> list[Asked]:
    rows = made_up_questions("bridge", size) + made_up_questions("comparison", size)
    return [_asked(row["kind"], row) for row in rows]


def musique(data: Path) -> list[Asked]:
    rows = map(orjson.loads, (data / MUSIQUE / "questions.jsonl").read_bytes().splitlines())
    return [
        _asked("musique, held out" if is_held_out(row["question"]) else "musique, others", row)
        for row in rows
    ]


def _asked(kind: str, row: dict[str, Any]) -> Asked:
    return Asked(kind, row["question"], frozenset(row["supporting_passage_ids"]))


def recall(gold: frozenset[str], ids: Sequence[str]) -> float:
    """Of documents: a long one is several passages, `id#1` …"""
    found = {each.split("#")[0] for each in ids[:CUT]}
    return len(found & gold) / len(gold)


def pool_of(body: Answer) -> list[str]:
    """The passages kept, in the order of the loop."""
    kept = [
        passage.passage_id
        for step in body.steps
        for passage in step.passages or ()
        if step.kind == "retrieve" and passage.kept
    ]
    return list(dict.fromkeys(kept))


async def measure(runtime: Runtime, asked: Asked, collection: str) -> Found:
    request = SearchRequest(asked.question, CUT, collection, "hybrid")
    result = await runtime.retrieval.retriever.search(request)
    searched = [hit.passage.passage_id for hit in result.passages]
    prepared = await runtime.prepare(
        AnswerRequest(
            question=asked.question,
            route="single",
            loop="efficientrag",
            collection=collection,
            timeout_s=300,
        ),
        anyone,
    )
    events = [event async for event in runtime.ask(prepared)]
    (ready,) = [event for event in events if isinstance(event, AnswerReady)]
    pool, usage = pool_of(ready.body), ready.body.usage
    return Found(
        asked.kind,
        recall(asked.gold, searched),
        recall(asked.gold, pool),
        len(pool),
        usage.retrievals,
        usage.llm_calls,
    )


def show(found: Sequence[Found]) -> bool:
    """Prints a row a kind; whether bridges reach the aim."""
    print(f"| kind | n | search recall@{CUT} | loop recall@{CUT} | ratio | pool | retrievals |")
    print("|---|---|---|---|---|---|---|")
    ratios: dict[str, float] = {}
    for kind, size in Counter(each.kind for each in found).items():
        own = [each for each in found if each.kind == kind]
        searched = statistics.fmean(each.searched for each in own)
        looped = statistics.fmean(each.looped for each in own)
        ratios[kind] = looped / searched
        pool = statistics.fmean(each.pool for each in own)
        hops = statistics.fmean(each.retrievals for each in own)
        print(
            f"| {kind} | {size} | {searched:.3f} | {looped:.3f} | {ratios[kind]:.2f} "
            f"| {pool:.1f} | {hops:.2f} |"
        )
    calls = Counter(each.llm_calls for each in found)
    print(f"LLM calls: {dict(calls)}; aim on bridges {AIM}")
    return ratios.get("bridge", 0.0) >= AIM and set(calls) <= {0, 1}


async def main(options: argparse.Namespace, work: Path) -> bool:
    own = EfficientragSettings(location=options.location)
    settings = Settings(data_dir=work / "data", efficientrag=own)
    reader = ScriptedGenerator([ScriptStep("x", times=None)])
    found: list[Found] = []
    async with open_runtime(settings, engines=dict.fromkeys(settings.engines, reader)) as runtime:
        sets = (
            (WIKI, CORPUS, synthesised(options.data, options.n)),
            (MUSIQUE, MUSIQUE, musique(options.data)),
        )
        for name, corpus, asked in sets:
            collections = runtime.retrieval.collections
            await collections.create(name)
            await ingest([options.data / corpus / "corpus.jsonl"], name, collections)
            found += [await measure(runtime, each, name) for each in asked]
    return show(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora and questions")
    parser.add_argument("--n", type=int, default=200, help="how many questions of each kind")
    parser.add_argument("--work", type=Path, help="folder to keep")
    parser.add_argument("--location", type=Path, help="folder of labeler and filter; absent: ours")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.work or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        raise SystemExit(0 if anyio.run(main, arguments, folder) else 1)
