"""Places at workers: who gets the next one, and that nobody who left does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from yarl import URL

from service.core.errors import EngineFailure, Overloaded
from service.core.settings import EngineSettings
from service.engines.pool.workers import (
    Member,
    PoolLimits,
    Profile,
    WaitingCall,
    WorkerAdmission,
    WorkerHealth,
)

pytestmark = pytest.mark.anyio


def member(name: str, *models: str, phase: Any = "up") -> Member:
    made = Member(URL(f"http://{name}:80/v1"), lambda url: pytest.fail("no call is made"), 0.0)
    made.health = WorkerHealth(phase)
    made.profile = Profile(models or ("base",))
    return made


class World:
    def __init__(self, *members: Member, **pool: Any) -> None:
        self.members = {member.name: member for member in members}
        self.flights: list[tuple[str, int]] = []
        settings = EngineSettings.model_validate({"kind": "vllm", "urls": ["http://a:80"]})
        limits = PoolLimits(**{"per_worker": 1, **pool})
        self.admission = WorkerAdmission(
            "e", settings, self.members, lambda *flight: self.flights.append(flight), limits
        )

    @asynccontextmanager
    async def taken(self, waiter: WaitingCall) -> AsyncIterator[str]:
        async with self.admission.place(waiter) as place:
            yield place.name

    async def waits(self, count: int) -> None:
        while self.admission.waiting != count:  # noqa: ASYNC110 (turns of this very loop)
            await asyncio.sleep(0)


async def test_a_place_that_comes_free_goes_to_who_waits() -> None:
    world = World(member("a"))
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
    assert world.members["a:80"].calls == world.members["a:80"].tokens == 0


async def test_a_caller_that_leaves_while_it_waits_is_forgotten() -> None:
    world = World(member("a"))

    async def call() -> None:
        async with world.taken(WaitingCall("leaves")):
            pytest.fail("it was sent")

    async with world.taken(WaitingCall("first")):
        task = asyncio.create_task(call())
        await world.waits(1)
        task.cancel()
        await asyncio.wait([task])
        assert world.admission.waiting == 0
    assert world.flights == [("a:80", 1), ("a:80", -1)]


async def test_a_caller_that_leaves_as_it_is_sent_gives_its_place_back() -> None:
    """The place comes free in the same turn of the event loop in which the caller leaves."""
    world = World(member("a"))

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

        assert world.members["a:80"].calls == 0
        assert world.admission.waiting == 0


async def test_too_many_wait() -> None:
    world = World(member("a"), waiting=0)

    async with world.taken(WaitingCall("first")):
        with pytest.raises(Overloaded, match="calls are waiting"):
            async with world.taken(WaitingCall("second")):
                pass


async def test_it_took_too_long() -> None:
    world = World(member("a"), wait_s=0.01)

    async with world.taken(WaitingCall("first")):
        with pytest.raises(Overloaded, match=r"no worker .* became free within 0.01 s"):
            async with world.taken(WaitingCall("second")):
                pass
    assert world.admission.waiting == 0


async def test_a_worker_gets_only_what_it_serves() -> None:
    world = World(member("a", "base"), member("b", "base", "adapter"), per_worker=5)

    for _ in range(3):
        async with world.taken(WaitingCall("q", model="adapter")) as name:
            assert name == "b:80"


async def test_no_worker_that_serves_it_says_why() -> None:
    world = World(member("a"), member("b", phase="ejected"), outage_s=0.01)
    world.members["b:80"].problem = "takes no connection"

    with pytest.raises(EngineFailure, match="a:80: serves base, not other; b:80: ejected, takes"):
        async with world.taken(WaitingCall("q", model="other")):
            pass


async def test_a_call_waits_for_a_worker_that_comes_back() -> None:
    world = World(member("a", phase="ejected"), outage_s=60.0)
    got: list[str] = []

    async def call() -> None:
        async with world.taken(WaitingCall("q")) as name:
            got.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(call())
        await world.waits(1)
        world.members["a:80"].health = WorkerHealth("up")
        world.admission.dispatch()
    assert got == ["a:80"]


async def test_what_failed_a_call_is_avoided_while_there_are_others() -> None:
    world = World(member("a"), member("b"), per_worker=5)

    async with world.taken(WaitingCall("q", avoid=frozenset({"a:80"}))) as name:
        assert name == "b:80"
    async with world.taken(WaitingCall("q", avoid=frozenset({"a:80", "b:80"}))) as name:
        assert name in world.members


async def test_the_limit_over_all_workers_holds() -> None:
    world = World(member("a"), member("b"), member("c"), per_worker=5, wait_s=0.01)
    settings = EngineSettings.model_validate(
        {"kind": "vllm", "urls": ["http://a:80"], "max_concurrency": 2}
    )
    limits = PoolLimits(wait_s=0.01)
    world.admission = WorkerAdmission("e", settings, world.members, lambda *_: None, limits)

    async with world.taken(WaitingCall("p")), world.taken(WaitingCall("q")):
        with pytest.raises(Overloaded):
            async with world.taken(WaitingCall("r")):
                pass
