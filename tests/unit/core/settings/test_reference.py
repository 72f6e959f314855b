"""The reference of the settings is that of the settings."""

from __future__ import annotations

import re
from pathlib import Path

from service.core.settings.__main__ import render

ROOT = Path(__file__).parents[4]


def test_the_reference_is_made_from_the_settings() -> None:
    kept = (ROOT / "deploy" / "SETTINGS.md").read_text(encoding="utf-8")
    assert kept == render(), "run: python -m service.core.settings > deploy/SETTINGS.md"


def test_every_setting_is_described() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", render(), re.MULTILINE)
    assert len(rows) > 80
    assert not [name for name, _, told in rows if not told]
    assert ("port", "`8000`", "Port to listen on. 0 selects a free port.") in rows
