"""Shares of the event loop: so much in one turn, in the order of asking."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from service.api.turns import EVENT, REQUEST, SHARES, Turns

pytestmark = pytest.mark.anyio


class Clock:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.turn = 0
        self._tick()

    def _tick(self) -> None:
        self.turn += 1
        self._next = asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> None:
        self._next.cancel()


@pytest.mark.parametrize(("shares", "at_once"), [(EVENT, SHARES), (REQUEST, SHARES // REQUEST)])
async def test_a_turn_has_room_for_so_many_and_the_rest_go_on_in_order(
    shares: int, at_once: int
) -> None:
    turns, clock = Turns(), Clock()
    went: list[tuple[int, int]] = []

    async def one(number: int) -> None:
        await turns.take(shares)
        went.append((number, clock.turn))

    many = 5 * at_once
    await asyncio.gather(*(one(number) for number in range(many)))
    clock.stop()
    assert [number for number, _ in went] == list(range(many))
    assert max(Counter(turn for _, turn in went).values()) == at_once
    assert went[-1][1] - went[0][1] <= 5 + 1


async def test_a_task_that_is_cancelled_while_it_waits_takes_nothing() -> None:
    turns = Turns()
    ended: list[int] = []

    async def one(number: int) -> None:
        await turns.take(SHARES)
        ended.append(number)

    tasks = [asyncio.create_task(one(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert ended == [0, 2, 3]


async def test_where_nothing_waits_nobody_does() -> None:
    turns = Turns()
    for _ in range(3 * SHARES):
        await asyncio.sleep(0)
        coroutine = turns.take(EVENT)
        with pytest.raises(StopIteration):
            coroutine.send(None)
