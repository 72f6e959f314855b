"""A bad worker, or all being replaced, fails no question."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.workers import FAULTS, QUESTIONS, Row, replace_all, survive


def check(row: Row) -> None:
    assert row.failed == []
    assert row.hung == 0
    assert row.answered == len(row.outcomes)
    assert all(outcome.whole for outcome in row.outcomes)


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "none"])
def test_one_bad_worker_of_three(name: str) -> None:
    row = asyncio.run(survive(FAULTS[name]))

    check(row)
    assert row.answered == QUESTIONS


@pytest.mark.allow_hosts([f"127.0.0.{number}" for number in range(1, 8)])
def test_all_workers_are_replaced_under_load() -> None:
    row = replace_all()

    check(row)
    assert row.answered > QUESTIONS
