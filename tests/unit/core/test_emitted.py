"""Iteration over what a task emits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest

from service.core.concurrency import BUFFERED, closing, emitted

Emit = Callable[[int], Awaitable[None]]


async def count(emit: Emit) -> None:
    for number in range(3 * BUFFERED):
        await emit(number)


async def test_several_tasks_emit_in_the_order_of_their_calls() -> None:
    called: list[int] = []

    async def work(emit: Emit) -> None:
        async def part(begin: int) -> None:
            for number in range(begin, begin + 2 * BUFFERED):
                called.append(number)
                await emit(number)

        await asyncio.gather(part(0), part(1000), part(2000))

    async with closing(emitted(work)) as items:
        assert [number async for number in items] == called


async def test_a_slow_reader_stops_the_work() -> None:
    done: list[int] = []

    async def work(emit: Emit) -> None:
        async def noted(number: int) -> None:
            done.append(number)
            await emit(number)

        await count(noted)

    async with closing(emitted(work)) as items:
        assert await anext(items) == 0
        await anyio.sleep(0.01)
        assert len(done) <= BUFFERED + 2


async def test_closing_cancels_the_work_and_waits_for_its_end() -> None:
    ended: list[str] = []

    async def work(emit: Emit) -> None:
        try:
            await count(emit)
        finally:
            await asyncio.sleep(0.01)
            ended.append("ended")

    async with closing(emitted(work)) as items:
        assert await anext(items) == 0
    assert ended == ["ended"]

    with anyio.move_on_after(0.01):
        async with closing(emitted(work)) as items:
            async for _ in items:
                await anyio.sleep(9)
    assert ended == ["ended"] * 2


async def test_a_failure_is_raised_after_what_was_emitted() -> None:
    async def work(emit: Emit) -> None:
        await emit(1)
        raise ValueError("broken")

    items = emitted(work)
    assert await anext(items) == 1
    with pytest.raises(ValueError, match="broken"):
        await anext(items)
