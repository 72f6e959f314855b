"""The sizes in deploy/README.md are those that the program counts, and the simulation bears out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.load.sizing import BUSY, PARTS, Costs, counted, load_table, simulate, sizes_table

README = Path(__file__).parents[2] / "deploy" / "README.md"


def test_the_tables_are_the_program_s() -> None:
    told = README.read_text(encoding="utf-8")
    for table in (sizes_table(Costs()), load_table(Costs())):
        assert "\n".join(table) in told


@pytest.mark.parametrize("minutely", [1_000, 100_000])
def test_parts_are_as_busy_as_their_work_and_no_busier_than_allowed(minutely: int) -> None:
    costs = Costs()
    sizes = counted(minutely, costs)
    loads = simulate(minutely, sizes, costs, 20_000, seed=2)
    for part in PARTS:
        expected = minutely / 60 * costs.of(part) / sizes[part]
        assert loads[part].busy == pytest.approx(expected, rel=0.05)
        assert expected <= BUSY[part]


def test_too_few_servers_make_questions_wait() -> None:
    costs = Costs()
    enough = counted(1_000, costs)
    few = simulate(1_000, {**enough, "gpu": 1}, costs, 5_000)
    assert few["gpu"].wait > 10
    assert few["gpu"].busy == pytest.approx(1.0, abs=0.05)


def test_dearer_questions_need_more() -> None:
    dearer = replace(Costs(), searches=3.0, output_tokens=200)
    assert all(counted(100_000, dearer)[part] > counted(100_000, Costs())[part] for part in PARTS)
