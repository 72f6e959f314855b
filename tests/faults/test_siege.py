"""A tenth of `python -m tests.faults.siege`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import need, unavailable
from tests.faults.siege.__main__ import PARTS
from tests.faults.siege.world import Plan

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("part", PARTS)
async def test_nothing_stops_it(part: str, tmp_path: Path) -> None:
    need("mcp")
    if part == "disk" and os.geteuid():
        unavailable("the right to mount", "run it as root")
    if part == "disk" and shutil.which("mkfs.ext4") is None:
        unavailable("mkfs.ext4", "install e2fsprogs")
    rows = await PARTS[part](Plan(scale=0.1), tmp_path)
    assert {row.what: row.told for row in rows if not row.good} == {}
