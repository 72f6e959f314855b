"""The mixture of the Revelator's five tasks (METHODS.md §1.5): sizes, balance, random order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from service.strategies.revelator.roles import ROUTE_LABELS
from service.workshop.synthesis.contract import Row, Selection
from service.workshop.synthesis.pipelines.hanrag.rows import prompt_of, target_of

# Rows of the paper, by task and target where the target is a class.
SIZES: Final = {
    ("route", ROUTE_LABELS["direct"]): 9_741,
    ("route", ROUTE_LABELS["single"]): 50_000,
    ("route", ROUTE_LABELS["complex"]): 50_000,
    ("route", ROUTE_LABELS["compound"]): 50_000,
    ("decompose", ""): 50_000,
}
MOST: Final = 60_000  # rows of a task


def select(rows: Sequence[Row], rng: random.Random) -> Selection:
    """Every prompt once, relevance balanced, classes and tasks cut to their sizes; shuffled."""
    lost: Counter[str] = Counter()
    kept = _once(rows, lost)
    kept = _balanced(kept, rng, lost)
    kept = _cut(kept, {key: size for key, size in SIZES.items() if key[1]}, rng, lost)
    by_task = {(row.fields["task"], ""): MOST for row in kept}
    kept = _cut(kept, by_task | {k: s for k, s in SIZES.items() if not k[1]}, rng, lost)
    rng.shuffle(kept)
    return Selection(kept, lost)


def _once(rows: Iterable[Row], lost: Counter[str]) -> list[Row]:
    """The first row of each prompt: a second one repeats it or says otherwise."""
    first: dict[str, Row] = {}
    for row in rows:
        known = first.setdefault(prompt_of(row), row)
        if known is not row:
            same = target_of(known) == target_of(row)
            lost["same row again" if same else "same prompt, other target"] += 1
    return list(first.values())


def _balanced(rows: list[Row], rng: random.Random, lost: Counter[str]) -> list[Row]:
    """As many relevant as irrelevant passages."""
    judged = [row for row in rows if row.fields["task"] == "relevance"]
    counts = Counter(target_of(row) for row in judged)
    fewest = min(counts["true"], counts["false"])
    wanted = {("relevance", target): fewest for target in ("true", "false")}
    return _cut(rows, wanted, rng, lost, "relevance: more than of the other label")


def _cut(
    rows: list[Row],
    sizes: dict[tuple[str, str], int],
    rng: random.Random,
    lost: Counter[str],
    reason: str = "over the size of the task",
) -> list[Row]:
    """At most `sizes[task, target]` rows, or `sizes[task, ""]` whatever the target, by chance."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, row in enumerate(rows):
        task = row.fields["task"]
        for key in ((task, target_of(row)), (task, "")):
            if key in sizes:
                groups.setdefault(key, []).append(index)
    out: set[int] = set()
    for key, indices in groups.items():
        if len(indices) > sizes[key]:
            out.update(rng.sample(indices, len(indices) - sizes[key]))
    if out:
        lost[reason] += len(out)
    return [row for index, row in enumerate(rows) if index not in out]
