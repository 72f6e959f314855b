"""Probes wait for their round of checks, but not long."""

from __future__ import annotations

import anyio
import pytest

from service.api import health
from service.api.health import Readiness
from service.checks import Check
from service.core.metrics import Metrics

OUT = Check("retrieval", False, "out", needed=False)


class Checks:
    """Checks that take as long as they are told."""

    def __init__(self) -> None:
        self.found: list[Check] | Exception = []
        self.rounds = 0
        self.released = anyio.Event()
        self.released.set()

    async def checks(self) -> list[Check]:
        self.rounds += 1
        found = self.found
        await self.released.wait()
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    monkeypatch.setattr(health, "FRESH_S", 0.0)
    monkeypatch.setattr(health, "PATIENCE_S", 0.02)
    return Checks()


def readiness_of(checks: Checks) -> Readiness:
    return Readiness(checks.checks, Metrics())


async def test_a_late_round_is_told_by_later_probes(checks: Checks) -> None:
    readiness = readiness_of(checks)
    assert (await readiness.missing(), readiness.degraded(lambda _: True)) == ([], [])
    checks.found, checks.released = [OUT], anyio.Event()
    for _ in range(3):
        assert (await readiness.missing(), readiness.degraded(lambda _: True)) == ([], [])
    assert checks.rounds == 2  # the late one goes on, and no other beside it
    checks.released.set()
    await anyio.wait_all_tasks_blocked()
    assert (await readiness.missing(), readiness.degraded(lambda _: True)) == (
        [],
        ["retrieval: out"],
    )
    await readiness.aclose()


async def test_the_first_round_is_waited_for(checks: Checks) -> None:
    checks.found, checks.released = [Check("engine", False, "out")], anyio.Event()
    readiness = readiness_of(checks)
    told: list[list[str]] = []

    async def probe() -> None:
        told.append(await readiness.missing())

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(probe)
        await anyio.sleep(0.1)
        assert told == []
        checks.released.set()
    assert told == [["engine: out"]] * 2
    assert (checks.rounds, readiness.was_ready) == (1, False)
    await readiness.aclose()


async def test_a_probe_that_leaves_ends_no_round(checks: Checks) -> None:
    checks.found, checks.released = [OUT], anyio.Event()
    readiness = readiness_of(checks)
    with anyio.move_on_after(0.02):
        await readiness.missing()
    checks.released.set()
    await anyio.wait_all_tasks_blocked()
    assert readiness.degraded(lambda _: True) == ["retrieval: out"]
    await readiness.aclose()


async def test_checks_that_break_are_begun_again(checks: Checks) -> None:
    checks.found = RuntimeError("broke")
    readiness = readiness_of(checks)
    with pytest.raises(RuntimeError, match="broke"):
        await readiness.missing()
    checks.found = []
    assert await readiness.missing() == []


async def test_closed_while_a_round_is_under_way(checks: Checks) -> None:
    checks.released = anyio.Event()
    readiness = readiness_of(checks)
    told: list[list[str]] = []

    async def probe() -> None:
        told.append(await readiness.missing())

    async with anyio.create_task_group() as group:
        group.start_soon(probe)
        await anyio.sleep(0.02)
        await readiness.aclose()
    assert told == [["The checks ended before any of them returned a result."]]
    assert checks.rounds == 1
