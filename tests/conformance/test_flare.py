"""The loop `flare` against the official implementation, by a record of its runs.

Identical: the same queries are searched, they
find the same passages, and the same sentences are written, in the same order. Rows whose `listed`
names what ours does otherwise are in the record, and are not compared.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance import flare_parity as parity
from tests.conformance.dragin_parity import WordRetriever, load_passages

RECORD: dict[str, Any] = json.loads(parity.RECORD.read_text(encoding="utf-8"))
RETRIEVER = WordRetriever(load_passages())


def compared(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in run["rows"] if not row["listed"]]


@pytest.mark.parametrize("number", range(4))
async def test_trajectories_are_those_of_the_official_code(number: int) -> None:
    run = RECORD["runs"][number]
    parameters = parity.Parameters(**run["parameters"])
    assert compared(run)
    for row in compared(run):
        ours = await parity.run_ours(row, RETRIEVER, parameters)
        assert ours == parity.Trajectory.of(row), row["question"]
