"""Parsers in children have time here, unless a test is about theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.retrieval.ingest.formats import child


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that starts, or recognises a page, may get little of a machine that is busy."""
    monkeypatch.setattr(child, "PAUSE_S", 100.0)


@pytest.fixture
def own_children() -> Iterator[None]:
    """Those of other tests are not used, nor these by others: they may have other limits."""
    child.close_all()
    yield
    child.close_all()
