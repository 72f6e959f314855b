from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.errors import BackendUnavailable, RetrievalFailure
from service.retrieval.search import guard
from service.retrieval.search.guard import FIRST_PAUSE_S, LONGEST_PAUSE_S, pause_s

pytestmark = pytest.mark.anyio


class Backend:
    """Raises what it is told to, in order; then answers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls = self.retries = 0

    async def ask(self) -> str:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    def retried(self) -> None:
        self.retries += 1


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "FIRST_PAUSE_S", 0.001)


@given(st.integers(0, 60), st.floats(0, 1))
def test_pauses_grow_within_bounds_and_are_spread_over_all_of_them(turn: int, share: float) -> None:
    assert 0 <= pause_s(turn, share) <= min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**turn)
    assert pause_s(turn, 0.0) == 0.0
    assert pause_s(0, 1.0) == guard.FIRST_PAUSE_S
    assert pause_s(60, 1.0) == LONGEST_PAUSE_S


async def test_what_may_pass_is_tried_again() -> None:
    backend = Backend(BackendUnavailable("1"), BackendUnavailable("2"))
    assert await guard.retrying(backend.ask, 2, math.inf, backend.retried) == "answer"
    assert (backend.calls, backend.retries) == (3, 2)


async def test_the_last_failure_is_told() -> None:
    backend = Backend(*(BackendUnavailable(str(number)) for number in range(5)))
    with pytest.raises(BackendUnavailable, match="2"):
        await guard.retrying(backend.ask, 2, math.inf, backend.retried)
    assert (backend.calls, backend.retries) == (3, 2)


async def test_what_would_be_the_same_again_is_not_tried_again() -> None:
    backend = Backend(RetrievalFailure("400"))
    with pytest.raises(RetrievalFailure, match="400"):
        await guard.retrying(backend.ask, 2, math.inf, backend.retried)
    assert (backend.calls, backend.retries) == (1, 0)


async def test_no_pause_goes_beyond_the_time() -> None:
    backend = Backend(BackendUnavailable("1"))
    with pytest.raises(BackendUnavailable, match="1"):
        await guard.retrying(backend.ask, 2, time.monotonic(), backend.retried)
    assert backend.calls == 1
