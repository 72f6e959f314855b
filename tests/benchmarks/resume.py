"""kill -9 at random points of an ingest, then the same ingest again.

    python -m tests.benchmarks.resume [--kills 20] [--seed 0]

Target: the next run embeds at most what was missing plus one batch (32 passages, counted by the
embedder), and both stores then hold the same ids as after an undisturbed run. Half the kills come
at a random time, half at a random durable operation: a manifest, an upsert, a delete or a flush in
the dense store, a commit in tantivy, before or after it.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import anyio

from service.retrieval.embedding import BATCH
from tests.faults.killing import NotingEmbedder, State, documents, noted, run, run_and_kill, state

DOCUMENTS = 600
OPERATIONS = 53  # durable operations of this ingest


async def kill_and_resume(
    folder: Path, file: Path, whole: State, dice: random.Random, seconds: float
) -> tuple[bool, bool]:
    """Whether it was killed before its end, and whether the target was met."""
    data, first, second = folder / "data", folder / "first", folder / "second"
    if dice.random() < 0.5:
        operation = dice.randint(1, OPERATIONS)
        point = f"operation {operation}"
        killed = run_and_kill(data, file, first, operation=operation)
    else:
        after_s = dice.uniform(0, seconds)
        point = f"{after_s:.3f} s"
        killed = run_and_kill(data, file, first, after_s=after_s)
    made = (data / "collections" / "killed" / "manifest.json").exists()
    before = await state(data) if made else State({}, {}, whole.manifest)
    missing = len(whole.bm25) - len(before.dense)
    await run(data, file, NotingEmbedder(second))
    after = await state(data)
    same = after.bm25 == after.dense == whole.bm25 and after.manifest == whole.manifest
    both = noted(first) + noted(second)
    good = same and noted(second) <= missing + BATCH and both <= len(whole.bm25) + BATCH
    print(
        f"{point:>14} {'killed' if killed else 'ended before':12} "
        f"bm25 {len(before.bm25):4} dense {len(before.dense):4} missing {missing:4} "
        f"embedded {noted(second):4} (both runs {both:4}) "
        f"{'ids equal' if same else 'IDS DIFFER'} {'ok' if good else 'FAILED'}",
        flush=True,
    )
    return killed, good


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    dice = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = documents(folder / "corpus.jsonl", DOCUMENTS)
        started = time.perf_counter()
        run_and_kill(folder / "whole", file, folder / "log", after_s=None)
        seconds = time.perf_counter() - started
        whole = await state(folder / "whole")
        print(f"undisturbed: {DOCUMENTS} documents, {len(whole.bm25)} passages, {seconds:.2f} s")
        kills = failures = 0
        while kills < given.kills:
            trial = Path(tempfile.mkdtemp(dir=folder))
            killed, good = await kill_and_resume(trial, file, whole, dice, seconds)
            kills += killed
            failures += not good
    print(f"{kills} kills, {failures} beyond the bound (missing + {BATCH}) or with unequal ids")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(anyio.run(main))
