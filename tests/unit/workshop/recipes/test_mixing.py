"""The mixture of tasks: every row once, and no more of a task than its cap."""

from __future__ import annotations

from collections import Counter

from service.workshop.recipes.sft import mix

TASKS = ["route"] * 900 + ["refine"] * 100


def counts(order: list[int]) -> Counter[str]:
    return Counter(TASKS[place] for place in order)


def test_plain_is_every_row_once_shuffled() -> None:
    order = mix(TASKS, seed=0, cap=10_000)
    assert sorted(order) == list(range(1000))
    assert order != sorted(order)
    assert order == mix(TASKS, seed=0, cap=10_000) != mix(TASKS, seed=1, cap=10_000)


def test_a_cap_cuts_each_task() -> None:
    assert counts(mix(TASKS, seed=0, cap=200)) == {"route": 200, "refine": 100}
