"""The matrix of faults: what each did to questions, printed at the end of the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.outage import Counts

Note = Callable[[str, str, Counts], None]
FAULT = "fault"


@pytest.fixture
def matrix(record_property: Callable[[str, object], None]) -> Note:
    """Adds a row of the table: the part that the fault befell, the fault, and the questions."""

    def note(part: str, fault: str, counts: Counts) -> None:
        record_property(FAULT, f"{part:15}{fault:28}" + "".join(f"{n:9}" for n in counts))
        assert counts.lost == 0, (part, fault)

    return note


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())]
    rows = [row for each in reports for name, row in each.user_properties if name == FAULT]
    if rows:
        terminalreporter.section("faults, and what became of the questions")
        terminalreporter.line(f"{'':43}" + "".join(f"{name:>9}" for name in Counts._fields))
        for row in sorted(rows):
            terminalreporter.line(row)
