"""All of a group's work ends before the group does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

from service.core.concurrency import closing, gather, merge

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


async def counting(name: str, delay: float, ended: list[str]) -> AsyncIterator[str]:
    try:
        for n in range(3):
            await anyio.sleep(delay)
            yield f"{name}{n}"
    finally:
        ended.append(name)


async def test_merge_yields_items_as_they_come_and_keeps_each_streams_order() -> None:
    ended: list[str] = []
    streams = [counting("a", 0.2, ended), counting("b", 0.001, ended)]
    async with closing(merge(streams)) as pairs:
        items = [pair async for pair in pairs]
    assert [item for index, item in items if index == 0] == ["a0", "a1", "a2"]
    assert [item for _, item in items][:3] == ["b0", "b1", "b2"]


async def test_leaving_a_merge_early_closes_every_stream() -> None:
    ended: list[str] = []
    async with closing(merge([counting("a", 0.0, ended), counting("b", 9.0, ended)])) as pairs:
        async for _ in pairs:
            break
    assert sorted(ended) == ["a", "b"]


async def test_a_failing_stream_cancels_its_siblings() -> None:
    ended: list[str] = []

    async def fails() -> AsyncIterator[str]:
        yield "f0"
        raise ValueError("no")

    async def consume() -> None:
        async with closing(merge([counting("a", 9.0, ended), fails()])) as pairs:
            async for _ in pairs:
                pass

    with pytest.raises(ValueError, match="no"):
        await consume()
    assert ended == ["a"]
