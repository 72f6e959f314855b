"""Fixtures of every tier. A missing real thing skips; under REVELATOR_REAL=1 it fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings as hypothesis_settings

hypothesis_settings.register_profile("revelator", deadline=None)
hypothesis_settings.load_profile("revelator")


def unavailable(what: str, how: str) -> NoReturn:
    """Skip for want of `what`; a failure where the run must have every real thing."""
    message = f"{what} is not here; {how}"
    if os.environ.get("REVELATOR_REAL") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The development data (see CONTRIBUTING.md), beside the checkout or in REVELATOR_SHARED."""
    root = os.environ.get("REVELATOR_SHARED") or Path(__file__).parents[2] / "shared"
    data = Path(root) / "data"
    if not data.is_dir():
        unavailable("the development data", "set REVELATOR_SHARED to the folder that holds data/")
    return data
