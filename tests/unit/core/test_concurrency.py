"""All of a group's work ends before the group does, and queries of one turn go together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import anyio
import pytest

from service.core.concurrency import Batcher, as_done, closing, gather
from service.core.errors import BackendUnavailable


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


LAST = math.inf


class Work:
    """Takes as many seconds as an item says, and fails with those below 0. `LAST` takes until the
    others have been done."""

    def __init__(self, others: int = 0) -> None:
        self.running = self.most = 0
        self._others, self._done = others, anyio.Event()

    async def __call__(self, seconds: float) -> float:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if seconds < 0:
                raise ValueError("no")
            await (self._done.wait() if seconds == LAST else anyio.sleep(seconds))
        finally:
            self.running -= 1
        self._others -= 1
        if self._others == 0:
            self._done.set()
        return seconds


async def worked_off(work: Work, items: list[float]) -> list[float]:
    """The results, two at a time."""
    async with closing(as_done(work, items, 2)) as results:
        return [result async for result in results]


async def test_results_come_when_they_are_done_and_no_more_are_begun_than_allowed() -> None:
    work = Work(3)
    assert await worked_off(work, [LAST, 0.001, 0.002, 0.003]) == [0.001, 0.002, 0.003, LAST]
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


class Server:
    """Doubles numbers; answers 0 with an exception; fails or waits when told to."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.failure: Exception | None = None
        self.gate = anyio.Event()
        self.gate.set()

    async def send(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.sent.append(list(numbers))
        await self.gate.wait()
        if self.failure:
            raise self.failure
        return [2 * number or ValueError("nought") for number in numbers]


async def ask_all(batcher: Batcher[int, int], numbers: Sequence[int]) -> list[int]:
    async def ask(number: int) -> int:
        return await batcher.ask(number)

    return await gather([lambda number=number: ask(number) for number in numbers])  # type: ignore[misc]


async def test_queries_of_one_turn_go_together_and_each_gets_its_own() -> None:
    server = Server()
    batcher = Batcher[int, int](server.send, 3)
    assert await ask_all(batcher, [1, 2, 3, 4]) == [2, 4, 6, 8]
    assert sorted(map(len, server.sent)) == [1, 3]
    assert await batcher.ask(5) == 10
    assert server.sent[-1] == [5]


async def test_a_query_that_is_refused_fails_no_other() -> None:
    sent, answers, failures = list[list[int]](), list[int](), list[Exception]()

    async def send(numbers: Sequence[int]) -> list[int]:
        sent.append(list(numbers))
        if 3 in numbers:
            raise failure
        return [2 * number for number in numbers]

    async def ask(number: int) -> None:
        try:
            answers.append(await batcher.ask(number))
        except Exception as error:
            failures.append(error)

    async def all_asked() -> None:
        async with anyio.create_task_group() as group:
            for number in (1, 2, 3, 4):
                group.start_soon(ask, number)

    batcher, failure = Batcher[int, int](send, 8), Exception("the filter is too long")
    await all_asked()
    assert (sorted(answers), failures) == ([2, 4, 8], [failure])
    assert sent == [[1, 2, 3, 4], [1, 2], [3, 4], [3], [4]]
    sent.clear()
    failure = BackendUnavailable("it is busy")
    await all_asked()
    assert (failures[1:], sent) == ([failure] * 4, [[1, 2, 3, 4]])


@pytest.mark.parametrize("leaving", [1, 2])
async def test_a_request_goes_on_for_those_that_stay(leaving: int) -> None:
    server, answers, ended = Server(), list[int](), list[int]()
    server.gate = anyio.Event()
    send = server.send

    async def sent(numbers: Sequence[int]) -> list[int | Exception]:
        try:
            return await send(numbers)
        finally:
            ended.append(len(numbers))

    batcher = Batcher[int, int](sent, 8)
    scopes = [anyio.CancelScope() for _ in range(leaving)]

    async def asked(number: int) -> None:
        if number <= leaving:
            with scopes[number - 1]:
                await batcher.ask(number)
        else:
            answers.append(await batcher.ask(number))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(asked, 1)
            group.start_soon(asked, 2)
            await anyio.wait_all_tasks_blocked()
            assert server.sent == [[1, 2]]
            for scope in scopes:
                scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert ended == ([2] if leaving == 2 else [])  # without callers it is cancelled
            server.gate.set()
    assert answers == ([] if leaving == 2 else [4])


async def test_a_caller_that_leaves_before_the_request_is_not_in_it() -> None:
    server = Server()
    batcher = Batcher[int, int](server.send, 8)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await batcher.ask(1)
    assert await batcher.ask(2) == 4
    assert server.sent == [[2]]
