"""What the tests of recipes need."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.conftest import unavailable


@pytest.fixture(scope="session")
def train_extra() -> None:
    """What the recipes need beyond the extra `local`."""
    missing = [name for name in ("accelerate", "peft", "trl") if find_spec(name) is None]
    if missing:
        unavailable(", ".join(missing), "pip install '.[train]'")
