"""Shares of the event loop: so much in one turn, in the order of asking."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

import pytest

from service.api.admission import EVENT, REQUEST, SHARES, Turns

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
        check_free(turns)


@pytest.mark.parametrize("seed", range(10))
async def test_the_events_of_a_question_do_not_overtake_each_other(seed: int) -> None:
    """Several parts of a question number their events, and other questions use up the turns."""
    rng, turns = random.Random(seed), Turns()
    numbers = itertools.count()
    went: list[int] = []

    async def part() -> None:
        for _ in range(40):
            number = next(numbers)
            await turns.take(EVENT)
            went.append(number)
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)

    async def load() -> None:
        for _ in range(40):
            await turns.take(rng.choice([EVENT, REQUEST]))
            for _ in range(rng.randrange(2)):
                await asyncio.sleep(0)

    async def leave() -> None:
        for _ in range(20):
            leaving = asyncio.create_task(turns.take(REQUEST))
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])

    await asyncio.gather(*(part() for _ in range(5)), *(load() for _ in range(20)), leave())
    assert went == list(range(5 * 40))
    check_free(turns)


@pytest.mark.parametrize("hops", [1, 2])
async def test_nobody_waits_for_a_task_that_is_cancelled_before_it_continues(hops: int) -> None:
    turns = Turns()
    first = asyncio.create_task(turns.take(SHARES))
    waiting = asyncio.create_task(turns.take(EVENT))
    for _ in range(hops):  # with the second, a turn has let it continue
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([first, waiting])
    await asyncio.sleep(0)
    assert waiting.cancelled()
    check_free(turns)


def check_free(turns: Turns) -> None:
    """Assert that the next one continues at once."""
    with pytest.raises(StopIteration):
        turns.take(EVENT).send(None)
