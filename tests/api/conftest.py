"""A running service with a scripted engine: one that searches a fake retriever, and one with the
real embedded stores and an empty collection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service import checks
from service.api import health
from service.retrieval.collections import catalog
from service.retrieval.ingest.formats import child
from tests.support.live import Live, live


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a probe or a parser finds counts here, however busy the machine is."""
    monkeypatch.setattr(health, "PATIENCE_S", 60.0)  # a probe waits for its own round
    monkeypatch.setattr(health, "CHECK_TIMEOUT_S", 60.0)
    monkeypatch.setattr(checks, "OPEN_S", 60.0)
    monkeypatch.setattr(catalog, "EMBEDDED_TIMEOUT_S", 60.0)
    monkeypatch.setattr(child, "PAUSE_S", 100.0)


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
