"""Several tasks in one run: how often each one's rows come in an epoch (METHODS.md §1.5)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence


def mix(
    tasks: Sequence[str],
    *,
    seed: int,
    cap: int,
    temperature: float = 1.0,
    weights: Mapping[str, float] | None = None,
) -> list[int]:
    """Indices of the rows of one epoch, shuffled; `tasks` has each row's task.

    A task is first cut to `cap` rows. An epoch is as long as all that are left; of it a task gets a
    share that goes with ``(weight · rows) ** (1 / temperature)``. So at temperature 1 and without
    weights every row comes once; hotter, small tasks come oftener, whole passes before any repeat.
    Raises KeyError naming a weight whose task has no rows.
    """
    rng = random.Random(seed)
    places: dict[str, list[int]] = {}
    for place in rng.sample(range(len(tasks)), len(tasks)):
        places.setdefault(tasks[place], []).append(place)
    unknown = set(weights or ()) - places.keys()
    if unknown:
        raise KeyError(min(unknown))
    kept = {task: rows[:cap] for task, rows in sorted(places.items())}
    pulls = {
        task: ((weights or {}).get(task, 1.0) * len(rows)) ** (1 / temperature)
        for task, rows in kept.items()
    }
    total = sum(map(len, kept.values()))
    sizes = _whole_shares(total, pulls)
    drawn = [place for task, rows in kept.items() for place in _repeated(rows, sizes[task])]
    rng.shuffle(drawn)
    return drawn


def _whole_shares(total: int, pulls: Mapping[str, float]) -> dict[str, int]:
    """`total` split by `pulls` into whole numbers that add up, the largest remainders first."""
    exact = {task: total * pull / sum(pulls.values()) for task, pull in pulls.items()}
    sizes = {task: int(share) for task, share in exact.items()}
    left = total - sum(sizes.values())
    for task in sorted(exact, key=lambda task: sizes[task] - exact[task])[:left]:
        sizes[task] += 1
    return sizes


def _repeated(rows: Sequence[int], size: int) -> list[int]:
    return [rows[number % len(rows)] for number in range(size)]
