"""A tenth of `python -m tests.faults.siege`, without the two parts that take longest and still find
something: kills and corruption are run by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import need, unavailable
from tests.faults.siege.__main__ import PARTS
from tests.faults.siege.world import Plan

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


@pytest.mark.parametrize("part", ["access", "connections", "memory", "health", "disk"])
async def test_nothing_stops_it(part: str, tmp_path: Path) -> None:
    need("mcp")
    if part == "disk" and os.geteuid():
        unavailable("the right to mount", "run it as root")
    rows = await PARTS[part](Plan(scale=0.1), tmp_path)
    assert {row.what: row.told for row in rows if not row.good} == {}
