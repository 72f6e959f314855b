"""DRAGIN with spaCy's own filter and sentences: ours against the official code.

    git clone https://github.com/oneal2000/DRAGIN CHECKOUT
    python -m tests.conformance.dragin_spacy CHECKOUT [--questions N]

As `dragin_official.py`, but spaCy and its model en_core_web_sm, which no test environment has, are
the real ones on both sides. Prints how many trajectories are identical; writes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from service.text.tagging import missing
from tests.conformance import dragin_official as official_runs
from tests.conformance import dragin_parity as parity
from tests.support.tiny import TINY, open_tiny


def official_rows(checkout: Path, most: int) -> list[tuple[parity.Parameters, dict[str, Any]]]:
    """Rows that are comparable, each with the settings it was made under."""
    import torch

    official = official_runs.import_official(checkout, with_spacy=True)
    questions = parity.load_questions()
    questions = questions[:: max(1, len(questions) // most)][:most]
    made = []
    with torch.inference_mode():
        for number, run in enumerate(official_runs.RUNS):
            rag = official_runs.open_rag(official, TINY, run)
            asked = questions[number :: len(official_runs.RUNS)]
            made += [(run, row) for row in official_runs.record(rag, asked)]
    return [(run, row) for run, row in made if not row["listed"]]


async def identical(rows: list[tuple[parity.Parameters, dict[str, Any]]]) -> int:
    engine = open_tiny(timeout_s=300)
    retriever = parity.WordRetriever(parity.load_passages())
    same = 0
    for run, row in rows:
        ours = await parity.run_ours(engine, retriever, row["question"], run, tagger="spacy")
        theirs = parity.Trajectory.of(row)
        same += ours == theirs
        if ours != theirs:
            print(f"{asdict(run)} {row['question']}\n  {theirs}\n  {ours}")
    await engine.aclose()
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--questions", type=int, default=60)
    given = parser.parse_args()
    if lacking := missing("spacy"):
        sys.exit(lacking)
    official_runs.PASSAGES["sample"] = parity.WordRetriever(parity.load_passages())
    rows = official_rows(given.checkout, given.questions)
    same = asyncio.run(identical(rows))
    triggers = sum(len(row["turns"]) for _, row in rows)
    cleared = sum(row["cleared"] for _, row in rows)
    print(f"\nidentical: {same} of {len(rows)}; {triggers} triggers, {cleared} of them all cleared")


if __name__ == "__main__":
    main()
