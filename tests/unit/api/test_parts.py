"""The edge's parts by hand: admission, drain, shares of the event loop, bounded lines, wire
form."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, MutableMapping
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from service.answer.events import BaseEvent, Judgement, StepEnd
from service.api import admission as limits
from service.api.admission import (
    EVENT,
    REQUEST,
    SHARES,
    Admission,
    Drain,
    Place,
    Turns,
    WaitingQuestion,
    displaced_by,
)
from service.api.wire import EventStream, Write, encode, read_lines
from service.core.concurrency import gather
from service.core.errors import Draining, Overloaded
from service.core.metrics import Metrics
from service.core.settings import ServerSettings


async def never() -> None:
    await anyio.sleep_forever()


@pytest.fixture(autouse=True)
def _four_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING", 4)


def admission(drain: Drain | None = None) -> Admission:
    settings = ServerSettings.model_validate({"max_running": 1})
    return Admission(settings, Metrics(), drain or Drain())


async def test_places_go_by_order_of_arrival_and_none_is_lost() -> None:
    gate = admission()
    first = await gate.enter(never, "a")
    order: list[int] = []

    async def wait(number: int) -> None:
        place = await gate.enter(never, "a")
        order.append(number)
        assert gate.running == 1
        await anyio.lowlevel.checkpoint()
        place.release()
        place.release()

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(wait, number)
            await anyio.wait_all_tasks_blocked()
        with pytest.raises(Overloaded):
            await gate.enter(never, "a")
        first.release()
    assert order == list(range(4))
    assert (gate.running, gate.waiting) == (0, 0)


async def test_a_place_given_to_one_who_is_just_leaving_goes_to_the_next() -> None:
    gate = admission()
    first = await gate.enter(never, "a")
    places: list[Place] = []

    async def wait() -> None:
        places.append(await gate.enter(never, "a"))

    leaving = asyncio.create_task(wait())
    await anyio.sleep(0.01)
    staying = asyncio.create_task(wait())
    await anyio.sleep(0.01)
    first.release()  # gives the place to the first waiter …
    leaving.cancel()  # … which goes before it can take it
    await asyncio.wait([leaving, staying], timeout=10)
    assert leaving.cancelled()
    assert len(places) == 1
    places[0].release()
    assert (gate.running, gate.waiting) == (0, 0)


async def test_who_waits_when_draining_begins_is_refused() -> None:
    drain = Drain()
    gate = admission(drain)
    await gate.enter(never, "a")
    waiting = asyncio.create_task(gate.enter(never, "a"))
    await anyio.sleep(0.01)
    drain.begin()
    with pytest.raises(Draining):
        await waiting
    with pytest.raises(Draining):
        await gate.enter(never, "a")


async def test_a_drain_waits_for_work_then_cuts_it_off() -> None:
    drain = Drain()
    cut = anyio.Event()
    with drain.work(cut.set):
        drain.begin()
        await drain.finished(0.01)
        assert cut.is_set()
    async with asyncio.timeout(10):
        await drain.finished(60)
    with pytest.raises(Draining), drain.work(cut.set):
        pass


async def lines(chunks: list[bytes], longest: int = 10) -> list[bytes | None]:
    messages: AsyncIterator[dict[str, object]]

    async def body() -> AsyncIterator[dict[str, object]]:
        for chunk in chunks:
            yield {"type": "http.request", "body": chunk, "more_body": True}
        yield {"type": "http.request", "body": b"", "more_body": False}

    messages = body()

    async def receive() -> dict[str, object]:
        return await anext(messages)

    request = Request({"type": "http", "headers": []}, receive)  # type: ignore[arg-type]
    return [line async for line in read_lines(request, longest)]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\n", b"c"], [b"ab", b"c"]),
        ([b"\n\na"], [b"", b"", b"a"]),
        ([b"x" * 10 + b"\n"], [b"x" * 10]),
        ([b"x" * 11 + b"\nb"], [None, b"b"]),
        ([b"x" * 8, b"x" * 8, b"x" * 8 + b"\nb\n"], [None, b"b"]),
        ([b"x" * 30], [None]),
        ([], []),
    ],
)
async def test_lines_are_bounded_however_they_are_cut(
    chunks: list[bytes], expected: list[bytes | None]
) -> None:
    assert await lines(chunks) == expected


def data_of(event: BaseEvent) -> Any:
    """What the event's field `data` holds."""
    return json.loads(encode("a", event).split(b"\n")[1].removeprefix(b"data: "))


def test_a_judgement_has_one_of_two_shapes_and_a_step_s_absent_answer_is_null() -> None:
    ending = data_of(Judgement(step="1", ending=True))
    assert ending == {"seq": 0, "ms": 0.0, "step": "1", "ending": True}
    closed = data_of(StepEnd(step="1"))
    assert closed["answer"] is None


def waiting(order: str) -> list[WaitingQuestion]:
    """A letter is a question of that tenant, the first has waited longest."""
    return [WaitingQuestion(tenant) for tenant in order]


@given(st.text(alphabet="abc", max_size=40), st.text(alphabet="abc", max_size=40))
async def test_a_tenant_that_asks_less_than_its_share_is_never_refused_for_a_flood(
    order: str, newcomers: str
) -> None:
    most = 12
    line = waiting(order[:most])
    for tenant in newcomers:
        own = sum(each.tenant == tenant for each in line)
        if len(line) >= most:
            displaced = displaced_by(tenant, line)
            if displaced is None:
                assert own + 1 >= most // 3
                continue
            line.remove(displaced)
        line.append(WaitingQuestion(tenant))


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


async def test_what_tasks_side_by_side_write_stays_in_order() -> None:
    """The first write waits for the client; the second may not pass it."""
    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        body = message.get("body", b"")
        await asyncio.sleep(0.02 if body == b"0" else 0.0)
        sent.append(body)

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def work(write: Write) -> None:
        await gather([partial(write, b"%d" % n) for n in range(3)])

    await EventStream(work)({"type": "http"}, receive, send)
    assert list(filter(None, sent)) == [b"0", b"1", b"2"]
