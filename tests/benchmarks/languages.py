"""How often one BM25 search finds the right passage, in twelve languages.

    python -m tests.benchmarks.languages --data SETS

`--data` is the folder of public sets. The passages of `xquad_languages/` (eleven, dev) and those
of `japanese.tsv` (50 made-up ones, each with its question) lie together in one collection,
analysed as by default; then those of each language in one of their own, with the analysis of that
default and with what is chosen for them (`analysis_for`).
For each language: the share of its questions whose passage is among the first ten.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from service.core.domain import Passage
from service.retrieval.base import EVERYTHING, Analysis, SearchRequest
from service.retrieval.documents import PassageRecord
from service.retrieval.stores.analysis import analysis_for
from service.retrieval.stores.tantivy_store import TantivyStore
from service.workshop.rows import read_lines

JAPANESE: Final = Path(__file__).with_name("japanese.tsv")
TOP_K: Final = 10


class Language(NamedTuple):
    """Passages, and questions with the ids of their passages."""

    passages: Sequence[PassageRecord]
    questions: Sequence[tuple[str, str]]


def record(name: str, title: str, text: str) -> PassageRecord:
    return PassageRecord(Passage(name, title, text), name, "", 0, 1)


def languages(data: Path) -> dict[str, Language]:
    found = {}
    for folder in sorted((data / "xquad_languages").iterdir()):
        passages = [
            record(row["id"], row["title"], row["text"])
            for row in read_lines(folder / "corpus.jsonl")
        ]
        questions = [
            (row["question"], row["supporting_passage_ids"][0])
            for row in read_lines(folder / "questions.jsonl")
        ]
        found[folder.name] = Language(passages, questions)
    rows = [line.split("\t") for line in JAPANESE.read_text(encoding="utf-8").splitlines()]
    found["ja"] = Language(
        [record(f"ja-{n}", "", text) for n, (text, _) in enumerate(rows)],
        [(question, f"ja-{n}") for n, (_, question) in enumerate(rows)],
    )
    return found


async def recall(store: TantivyStore, questions: Sequence[tuple[str, str]]) -> float:
    hits = 0
    for question, wanted in questions:
        found = await store.search(SearchRequest(question, TOP_K, "c", principals=EVERYTHING))
        hits += wanted in [each.passage.passage_id for each in found]
    return hits / len(questions)


async def run(data: Path) -> None:
    known = languages(data)
    print("| language | all together, `english` | alone, `english` | alone, chosen | questions |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        pooled = TantivyStore(Path(folder) / "all", "english")
        await pooled.replace(
            [], [each for language in known.values() for each in language.passages]
        )
        for name, language in known.items():
            together = await recall(pooled, language.questions)
            chosen = analysis_for(each.passage.text for each in language.passages)
            alone: dict[Analysis, float] = {}
            for analysis in dict.fromkeys(["english", chosen]):
                own = TantivyStore(Path(folder) / f"{name}-{analysis}", analysis)
                await own.replace([], language.passages)
                alone[analysis] = await recall(own, language.questions)
            figures = [f"{each:.3f}" for each in (together, alone["english"], alone[chosen])]
            shown = [name, *figures[:2], f"{figures[2]} ({chosen})", str(len(language.questions))]
            print(f"| {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    asyncio.run(run(parser.parse_args().data))
