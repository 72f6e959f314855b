"""A running service with a scripted engine: one that searches a fake retriever, and one with the
real embedded stores and an empty collection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.live import Live, live


@pytest.fixture
async def service() -> AsyncIterator[Live]:
    async with live() as running:
        yield running


@pytest.fixture
async def mine(tmp_path: Path) -> AsyncIterator[Live]:
    """The collection is called `mine`."""
    from tests.api.test_collections import put, stored

    async with stored(tmp_path) as running:
        await put(running)
        yield running
