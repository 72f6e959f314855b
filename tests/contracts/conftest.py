"""The pairs of stores, without the collection of an earlier test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from service.retrieval.collections.backends import Backends
from tests.contracts.stores import NAME, WORLDS


@pytest.fixture(params=WORLDS)
async def backends(request: pytest.FixtureRequest) -> AsyncIterator[Backends]:
    made = WORLDS[request.param](request)
    await made.drop(NAME)
    yield made
    await made.drop(NAME)
    await made.aclose()
