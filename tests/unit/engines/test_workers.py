"""Workers: which of them a call gets, who waits, and what a failure does to one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from service.core.errors import EngineFailure, EngineUnreached, Overloaded
from service.core.settings import EngineSettings
from service.engines.base import Profile
from service.engines.workers import (
    BOUND,
    SLACK,
    PoolLimits,
    WaitingCall,
    Worker,
    WorkerAdmission,
    choose,
)

IDLE = [(f"w{n}", 0) for n in range(5)]


def worker(name: str, *models: str, phase: Any = "up") -> Worker:
    made = Worker(URL(f"http://{name}:80/v1"), lambda url: pytest.fail("no call is made"))
    made.phase = phase
    made.profile = Profile(models or ("base",))
    return made


class World:
    def __init__(self, *workers: Worker, most: int = 64, **pool: Any) -> None:
        self.workers = {worker.name: worker for worker in workers}
        self.flights: list[tuple[str, int]] = []
        settings = EngineSettings(kind="vllm", urls=["http://a:80"], max_concurrency=most)
        limits = PoolLimits(**{"per_worker": 1, **pool})
        self.admission = WorkerAdmission(
            "e", settings, self.workers, lambda *flight: self.flights.append(flight), limits
        )

    @asynccontextmanager
    async def taken(self, waiter: WaitingCall) -> AsyncIterator[str]:
        async with self.admission.place(waiter) as place:
            yield place.name

    async def waits(self, count: int) -> None:
        while self.admission.waiting != count:  # noqa: ASYNC110 (turns of this very loop)
            await asyncio.sleep(0)


async def test_a_place_that_comes_free_goes_to_who_waits() -> None:
    world = World(worker("a"))
    held: list[str] = []

    async def call() -> None:
        async with world.taken(WaitingCall("second")) as name:
            held.append(name)

    async with asyncio.TaskGroup() as group, world.taken(WaitingCall("first")):
        group.create_task(call())
        await world.waits(1)
        assert held == []
    assert held == ["a:80"]
    assert world.flights == [("a:80", 1), ("a:80", -1), ("a:80", 1), ("a:80", -1)]
    assert world.workers["a:80"].calls == world.workers["a:80"].tokens == 0


async def test_a_caller_that_leaves_as_it_is_sent_gives_its_place_back() -> None:
    """The place comes free in the same turn of the event loop in which the caller leaves."""
    world = World(worker("a"))

    async def call() -> None:
        async with world.taken(WaitingCall("leaves")):
            pytest.fail("it was sent")

    for order in ("leave first", "free first"):
        first = world.taken(WaitingCall("first"))
        await first.__aenter__()
        task = asyncio.create_task(call())
        await world.waits(1)
        if order == "leave first":
            task.cancel()
        await first.__aexit__(None, None, None)
        task.cancel()
        await asyncio.wait([task])

        assert world.workers["a:80"].calls == 0
        assert world.admission.waiting == 0
        assert sum(change for _, change in world.flights) == 0


@pytest.mark.parametrize(
    ("limits", "most", "said"),
    [
        ({"waiting": 0}, 64, "calls are waiting"),
        ({"wait_s": 0.01}, 64, r"no worker .* became free within 0.01 s"),
        ({"wait_s": 0.01, "per_worker": 5}, 1, "became free"),  # of all workers together
    ],
)
async def test_what_cannot_be_placed_is_refused(
    limits: dict[str, Any], most: int, said: str
) -> None:
    world = World(worker("a"), most=most, **limits)

    async with world.taken(WaitingCall("first")):
        with pytest.raises(Overloaded, match=said):
            async with world.taken(WaitingCall("second")):
                pass
    assert world.admission.waiting == 0


async def test_a_call_waits_for_a_worker_that_comes_back() -> None:
    world = World(worker("a", phase="ejected"), outage_s=60.0)
    got: list[str] = []

    async def call() -> None:
        async with world.taken(WaitingCall("q")) as name:
            got.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(call())
        await world.waits(1)
        world.workers["a:80"].phase = "up"
        world.admission.dispatch()
    assert got == ["a:80"]


async def test_questions_under_way_go_first_and_a_call_without_a_place_holds_up_nobody() -> None:
    world = World(worker("a"), worker("b", "rare"))
    order: list[str] = []

    async def call(question: str, turn: int, model: str = "base") -> None:
        async with world.taken(WaitingCall(question, turn=turn, model=model)):
            order.append(question)

    async with asyncio.TaskGroup() as group:
        async with world.taken(WaitingCall("rare", model="rare")):
            async with world.taken(WaitingCall("first")):
                for waits, (name, turn, model) in enumerate(
                    [("rare", 1, "rare"), ("new", 0, "base"), ("newer", 0, "base"),
                     ("old", 2, "base")], 1
                ):  # fmt: skip
                    group.create_task(call(name, turn, model))
                    await world.waits(waits)
            await world.waits(1)
        await world.waits(0)
    assert order == ["old", "new", "newer", "rare"]


def test_questions_spread_and_a_worker_that_goes_moves_only_its_own() -> None:
    keys = [f"q{n}" for n in range(1000)]
    before = {key: choose(IDLE, key, 1) for key in keys}
    after = {key: choose(IDLE[1:], key, 1) for key in keys}
    assert min(Counter(before.values()).values()) > 140
    assert all(after[key] == before[key] for key in keys if before[key] != "w0")


@given(
    st.lists(st.integers(0, 20_000), min_size=1, max_size=8),
    st.text(max_size=8),
    st.integers(1, 500),
)
def test_bounded_load(loads: list[int], key: str, tokens: int) -> None:
    """No worker that has work goes past its bound unless every one would."""
    candidates = {f"w{n}": load for n, load in enumerate(loads)}
    most = max(SLACK, BOUND * (sum(loads) + tokens) / len(loads))

    def within(name: str) -> bool:
        return not candidates[name] or candidates[name] + tokens <= most

    chosen = choose(list(candidates.items()), key, tokens)
    assert within(chosen) or not any(map(within, candidates))


def test_failures_in_a_row_eject_a_worker_and_one_without_connection_at_once() -> None:
    failure, limits = EngineFailure("wrong"), PoolLimits(eject_after=3)
    one = worker("a")
    assert [one.phase_after(failure, limits) for _ in range(3)] == ["up", "up", "ejected"]
    assert one.problem == "wrong"
    assert worker("a").phase_after(EngineUnreached("nobody listens"), limits) == "ejected"
    assert worker("a", phase="joining").phase_after(failure, limits) == "ejected"
    going = worker("a", phase="draining")
    assert {going.phase_after(EngineUnreached(""), limits) for _ in range(4)} == {"draining"}
