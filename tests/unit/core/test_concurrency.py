"""All of a group's work ends before the group does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from service.core.concurrency import as_done, closing, gather

pytestmark = pytest.mark.anyio


def returns(value: int, delay: float) -> Callable[[], Awaitable[int]]:
    async def call() -> int:
        await anyio.sleep(delay)
        return value

    return call


async def test_gather_keeps_the_order_given() -> None:
    assert await gather([returns(1, 0.02), returns(2, 0.0)]) == [1, 2]


async def test_gather_raises_the_failure_itself_and_cancels_the_others() -> None:
    ended: list[str] = []

    async def slow() -> int:
        try:
            await anyio.sleep(10)
        finally:
            ended.append("slow")
        return 1

    async def fails() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await gather([slow, fails])
    assert ended == ["slow"]


class Work:
    """Takes as many seconds as an item says, and fails with those below 0."""

    def __init__(self) -> None:
        self.running = self.most = 0

    async def __call__(self, seconds: float) -> float:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if seconds < 0:
                raise ValueError("no")
            await anyio.sleep(seconds)
        finally:
            self.running -= 1
        return seconds


async def worked_off(work: Work, items: list[float]) -> list[float]:
    """The results, two at a time."""
    async with closing(as_done(work, items, 2)) as results:
        return [result async for result in results]


async def test_results_come_when_they_are_done_and_no_more_are_begun_than_allowed() -> None:
    work = Work()
    assert await worked_off(work, [0.2, 0.001, 0.002, 0.003]) == [0.001, 0.002, 0.003, 0.2]
    assert work.most == 2


async def test_leaving_early_ends_all_work() -> None:
    work = Work()
    async with closing(as_done(work, [0.0, 9.0, 9.0], 3)) as results:
        async for _ in results:
            break
    assert (work.running, work.most) == (0, 3)


async def test_a_failure_cancels_the_others() -> None:
    work = Work()
    with pytest.raises(ValueError, match="no"):
        await worked_off(work, [9.0, -1.0])
    assert (work.running, work.most) == (0, 2)
