"""A tenth of `python -m tests.faults.siege`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import need
from tests.faults.siege.__main__ import PARTS
from tests.faults.siege.world import Plan

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


@pytest.mark.parametrize("part", ["access", "connections", "memory"])
async def test_nothing_stops_it(part: str, tmp_path: Path) -> None:
    need("mcp")
    rows = await PARTS[part](Plan(scale=0.1), tmp_path)
    assert {row.what: row.told for row in rows if not row.good} == {}
