"""The mixture of tasks: every row once, or shares by temperature and weight."""

from __future__ import annotations

from collections import Counter

import pytest

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


def test_heat_lifts_small_tasks() -> None:
    assert counts(mix(TASKS, seed=0, cap=10_000, temperature=2)) == {"route": 750, "refine": 250}
    even = counts(mix(TASKS, seed=0, cap=10_000, temperature=1e9))
    assert even == {"route": 500, "refine": 500}


def test_rows_repeat_only_after_all_came() -> None:
    order = mix(TASKS, seed=0, cap=10_000, temperature=2)
    small = Counter(place for place in order if TASKS[place] == "refine")
    assert len(small) == 100
    assert set(small.values()) == {2, 3}


def test_weights_shift_shares() -> None:
    found = counts(mix(TASKS, seed=0, cap=10_000, weights={"refine": 9}))
    assert found == {"route": 500, "refine": 500}


def test_a_weight_without_rows_is_named() -> None:
    with pytest.raises(KeyError, match="refin"):
        mix(TASKS, seed=0, cap=10, weights={"refin": 2})
