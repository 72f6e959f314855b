from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from unittest import mock

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.concurrency import gather
from service.core.errors import BackendUnavailable, ConfigurationError
from service.core.settings import RetrievalSettings
from service.retrieval.search import guard
from service.retrieval.search.guard import Breaker, Guard
from tests.support.observed import Observed

LONG_S = 30.0  # never waited for


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    yield
    mock.patch.stopall()


def limit(**constants: float) -> None:
    """Set constants of guards until the end of the test."""
    mock.patch.multiple(guard, **constants).start()


class World:
    """A guarded backend whose calls hang until the gate is open."""

    def __init__(
        self,
        timeout_s: float = 5.0,
        concurrency: int = 2,
        failures: int = 1,
        lost_s: float = LONG_S,
        open_s: float = LONG_S,
    ) -> None:
        self.observed = Observed()
        limit(CALLS=concurrency, RETRIES=1, FAILURES=failures, LOST_S=lost_s, OPEN_S=open_s)
        self.guard = Guard("qdrant", RetrievalSettings(timeout_s=timeout_s), self.observed)
        self.gate = anyio.Event()
        self.running = self.most = self.calls = 0

    async def hang(self) -> str:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        return "answer"

    @property
    def states(self) -> list[str]:
        return [state for _, state in self.observed.states]


def failing(error: Exception) -> Callable[[], Awaitable[str]]:
    async def call() -> str:
        raise error

    return call


async def well() -> str:
    return "well"


async def test_places_are_bounded() -> None:
    world = World(concurrency=2)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(world.guard.call, world.hang)
        await anyio.wait_all_tasks_blocked()
        assert (world.running, world.calls) == (2, 2)
        world.gate.set()
    assert (world.most, world.calls) == (2, 5)
    assert world.observed.searches == [("qdrant", False)] * 5


async def test_who_waits_for_a_place_gives_up_in_time_and_blames_nobody() -> None:
    world = World(concurrency=1)
    async with anyio.create_task_group() as group:
        group.start_soon(world.guard.call, world.hang)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(BackendUnavailable, match=r"qdrant took longer than 0.0\d+ s"):
            await world.guard.call(world.hang, time.monotonic() + 0.02)
        world.gate.set()
    assert (world.calls, world.states) == (1, ["closed"])


async def test_silence_for_all_of_its_own_time_is_a_failure() -> None:
    world = World(timeout_s=0.02)
    with pytest.raises(BackendUnavailable, match=r"qdrant took longer than 0.02 s"):
        await world.guard.call(world.hang)
    assert world.states == ["closed", "open"]
    assert world.observed.searches == [("qdrant", True)]
    with pytest.raises(BackendUnavailable, match="is open after repeated failures"):
        await world.guard.call(world.hang)
    assert world.calls == 1
    assert world.observed.searches == [("qdrant", True)]  # it was not searched


async def test_those_who_wait_are_refused_when_the_breaker_opens() -> None:
    world = World(concurrency=1, failures=1)
    refused: list[str] = []

    async def breaking() -> str:
        await world.gate.wait()
        raise BackendUnavailable("no connection")

    async def call(ask: Callable[[], Awaitable[str]]) -> None:
        try:
            await world.guard.call(ask)
        except BackendUnavailable as error:
            refused.append(error.detail)

    async with anyio.create_task_group() as group:
        group.start_soon(call, breaking)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(call, world.hang)
        await anyio.wait_all_tasks_blocked()
        world.gate.set()
    assert refused[0] == "no connection"
    assert "is open after repeated failures" in refused[1]
    assert world.calls == 0


async def test_a_hasty_question_and_a_caller_that_leaves_say_nothing() -> None:
    world = World()
    with pytest.raises(BackendUnavailable):
        await world.guard.call(world.hang, time.monotonic() + 0.01)
    with anyio.move_on_after(0.01):
        await world.guard.call(world.hang)
    assert (world.running, world.states) == (0, ["closed"])
    assert world.observed.searches == [("qdrant", True)]


async def test_failures_are_retried_and_told() -> None:
    world = World(failures=2)
    with pytest.raises(BackendUnavailable, match="out"):
        await world.guard.call(failing(BackendUnavailable("out")))
    assert world.observed.retries == ["qdrant"]
    with pytest.raises(ConfigurationError):  # it answers: the row of failures ends
        await world.guard.call(failing(ConfigurationError("key")))
    with pytest.raises(BackendUnavailable):
        await world.guard.call(failing(BackendUnavailable("out")))
    assert world.states == ["closed"]
    with pytest.raises(BackendUnavailable):
        await world.guard.call(failing(BackendUnavailable("out")))
    assert world.states == ["closed", "open"]


async def test_a_programming_error_passes_through() -> None:
    world = World()
    with pytest.raises(ZeroDivisionError):
        await world.guard.call(failing(ZeroDivisionError()))
    assert world.states == ["closed"]
    world.gate.set()
    assert await gather([lambda: world.guard.call(world.hang)]) == ["answer"]


async def opened(world: World) -> None:
    with pytest.raises(BackendUnavailable):
        await world.guard.call(failing(BackendUnavailable("out")))
    assert world.states == ["closed", "open"]


async def test_a_question_does_not_wait_for_a_trial_that_hangs() -> None:
    world = World(open_s=0.01)
    await opened(world)
    await anyio.sleep(0.02)
    started = time.monotonic()
    with pytest.raises(BackendUnavailable, match="is open after repeated failures"):
        await world.guard.call(world.hang)
    assert time.monotonic() - started < 5
    assert (world.calls, world.states[-1]) == (1, "half-open")
    for _ in range(3):  # others do not try beside it
        with pytest.raises(BackendUnavailable, match="is open after repeated failures"):
            await world.guard.call(world.hang)
    assert world.calls == 1
    world.gate.set()
    await anyio.wait_all_tasks_blocked()
    assert world.states[-1] == "closed"
    assert await world.guard.call(world.hang) == "answer"


async def test_a_trial_that_is_quick_answers_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "GRACE_S", 10.0)
    world = World(open_s=0.01)
    await opened(world)
    await anyio.sleep(0.02)
    world.gate.set()
    assert await world.guard.call(world.hang) == "answer"
    assert world.states[-1] == "closed"


async def test_a_trial_outlives_its_caller_and_ends_with_the_guard() -> None:
    world = World(open_s=0.01)
    await opened(world)
    await anyio.sleep(0.02)
    with anyio.move_on_after(0.01):
        await world.guard.call(world.hang)
    assert (world.running, world.states[-1]) == (1, "half-open")
    await world.guard.aclose()
    assert world.running == 0


async def test_probes_that_fail_decide_nothing() -> None:
    world = World(concurrency=1, failures=1, lost_s=0.01, open_s=0.01)
    for _ in range(3):
        with pytest.raises(BackendUnavailable, match="did not respond to a probe within 0"):
            await world.guard.probe(world.hang, time.monotonic() + 0.02)
        with pytest.raises(BackendUnavailable, match="out"):
            await world.guard.probe(failing(BackendUnavailable("out")), time.monotonic() + 1)
    assert (world.states, world.running) == (["closed"], 0)
    await opened(world)
    await anyio.sleep(0.02)
    with pytest.raises(BackendUnavailable, match="out"):
        await world.guard.probe(failing(BackendUnavailable("out")), time.monotonic() + 1)
    assert world.states == ["closed", "open"]
    assert world.observed.searches == [("qdrant", True)]  # that of `opened`


async def test_a_probe_that_succeeds_closes_a_breaker_whose_pause_is_over() -> None:
    world = World()
    await opened(world)
    world.gate.set()
    assert await world.guard.probe(world.hang, time.monotonic() + LONG_S) == "answer"
    assert world.states == ["closed", "open"]  # the backend has its pause
    world = World(open_s=0.01)
    await opened(world)
    world.gate.set()
    await anyio.sleep(0.02)
    assert await world.guard.probe(world.hang, time.monotonic() + LONG_S) == "answer"
    assert world.states == ["closed", "open", "closed"]
    assert await world.guard.call(world.hang) == "answer"


async def test_a_probe_that_succeeds_does_not_end_a_trial() -> None:
    world = World(open_s=0.01)
    await opened(world)
    await anyio.sleep(0.02)
    with pytest.raises(BackendUnavailable, match="is open after repeated failures"):
        await world.guard.call(world.hang)
    assert await world.guard.probe(well, time.monotonic() + 1) == "well"
    assert world.states == ["closed", "open", "half-open"]
    await world.guard.aclose()


async def test_no_pause_goes_beyond_the_time() -> None:
    with pytest.raises(BackendUnavailable, match="out"):
        await guard.retrying(
            failing(BackendUnavailable("out")), time.monotonic(), lambda: pytest.fail("retried")
        )


# The states of a circuit breaker, stepped by hand; times are made up.


def breaker_of(failures: int) -> Breaker:
    limit(FAILURES=failures, LOST_S=3.0, OPEN_S=5.0)
    return Breaker()


def lose(breaker: Breaker, began: float, until: float, *, left: bool = False) -> None:
    ticket = breaker.admit(began)
    assert ticket is not None
    (breaker.left if left else breaker.failed)(ticket, began, until)


@pytest.mark.parametrize("left", [False, True])
def test_lost_time_opens_it_before_the_count_does(left: bool) -> None:
    breaker = breaker_of(5)
    lose(breaker, 0.0, 2.0, left=left)
    lose(breaker, 100.0, 100.9, left=left)  # nobody waited in between
    assert breaker.state == "closed"
    lose(breaker, 200.0, 200.2, left=left)
    assert breaker.state == "open"
    assert breaker.refuses(205.1)
    assert not breaker.refuses(205.2)


def test_those_who_wait_at_once_lose_the_time_once() -> None:
    breaker = breaker_of(100)
    tickets = [breaker.admit(0.0) for _ in range(50)]
    for number, ticket in enumerate(tickets):
        assert ticket is not None
        breaker.left(ticket, number / 100, 2.0 + number / 100)
    assert breaker.state == "closed"
    lose(breaker, 2.0, 3.1, left=True)
    assert breaker.state == "open"


def test_calls_from_before_a_change_of_state_tell_nothing() -> None:
    breaker = breaker_of(1)
    late, ticket = breaker.admit(0.0), breaker.admit(0.0)
    assert late is not None
    assert ticket is not None
    breaker.failed(ticket, 0.0, 0.0)
    breaker.succeeded(late)
    assert breaker.state == "open"
    probe = breaker.admit(5.0)
    assert probe is not None
    breaker.failed(late, 5.0, 5.0)
    breaker.left(late, 5.0, 5.0)
    assert breaker.state == "half-open"
    breaker.succeeded(probe)
    breaker.failed(late, 6.0, 6.0)
    assert breaker.state == "closed"


@given(st.lists(st.sampled_from(["succeeded", "failed", "left", "wait", "late"])))
def test_whatever_happens_a_backend_that_is_well_again_is_asked_again(ends: list[str]) -> None:
    breaker, now, late = breaker_of(2), 0.0, 0
    for end in ends:
        now += 5.0 if end == "wait" else 0.1
        ticket = breaker.admit(now)
        if ticket is None:
            continue
        if end == "failed":
            breaker.failed(ticket, now, now)
        elif end == "late":
            breaker.failed(late, now, now)
            breaker.left(ticket, 5.0, 5.0)
        elif end == "succeeded":
            breaker.succeeded(ticket)
        else:
            breaker.left(ticket, 5.0, 5.0)
        late = ticket
    probe = breaker.admit(now + 5.0)
    assert probe is not None
    breaker.succeeded(probe)
    assert breaker.state == "closed"
