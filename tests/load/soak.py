"""The service for minutes on end: answers, streams, callers that leave, and refused requests.

Memory is read every second. Answers that may be asked for again are held for a minute, which makes
it rise at first, so the first fifth, or two minutes, is left out; of the rest, the median of the
last third is compared with that of the first.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.benchmarks.http_support import ServerProcess, server
from tests.load.clients import BODY, TIMEOUT
from tests.load.raw_fuzz import Held, cases, send, settled

CLIENTS = 16
OPTIONS = ("--running", "16", "--seconds", "0.02", "--tokens", "8", "--limits", "2")
WARM_S = 120.0
SETTLE_S = 3.0  # until connections of the warm-up have ended
PAGE = 4096


@dataclass
class Soaked:
    """`memory`: resident bytes, a second apart, after the first part; `sent` by kind; `odd`: what
    had another status than it should."""

    before: Held
    after: Held
    memory: Sequence[int]
    sent: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)

    @property
    def growth(self) -> float:
        """Of the memory's median, from the first third to the last, as a share."""
        third = max(1, len(self.memory) // 3)
        first = statistics.median(self.memory[:third])
        return statistics.median(self.memory[-third:]) / first - 1

    @property
    def noise(self) -> float:
        """Between the quarters of the memory's values, as a share of their median."""
        low, middle, high = statistics.quantiles(self.memory, n=4)
        return (high - low) / middle

    @property
    def leaked(self) -> bool:
        return self.after.tasks > self.before.tasks or self.after.files > self.before.files


class Callers:
    """They use the service in one way after another, in turns, until time is up."""

    def __init__(self, target: ServerProcess, http: aiohttp.ClientSession) -> None:
        self.sent: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self._target, self._http = target, http
        self._numbers = itertools.count()
        self._broken = itertools.cycle(cases(200, seed=3))
        ways: tuple[Callable[[], Awaitable[bool]], ...] = (
            self.answer, self.stream, self.repeated, self.leaves, self.refused, self.watched,
            self.broken,
        )  # fmt: skip
        self._turns = itertools.cycle(ways)

    async def go_on(self, until: float) -> None:
        while time.monotonic() < until:
            await self.next()

    async def next(self) -> None:
        """Use the service in the next way."""
        way = next(self._turns)
        name = way.__name__
        self.sent[name] += 1
        try:
            if not await way():
                self.odd[name] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            self.odd[f"{name}: {type(error).__name__}"] += 1

    async def answer(self) -> bool:
        async with self._http.post("/answer", json=BODY) as response:
            return response.status == 200 and (await response.json())["answered"]

    async def stream(self) -> bool:
        async with self._http.post("/answer/stream", json=BODY) as response:
            return "event: done" in await response.text()

    async def repeated(self) -> bool:
        headers = {"Idempotency-Key": f"k{next(self._numbers)}"}
        ids = set()
        for _ in range(2):
            async with self._http.post("/answer", json=BODY, headers=headers) as response:
                ids.add((await response.json())["id"])
        return len(ids) == 1

    async def leaves(self) -> bool:
        async with self._http.post("/answer/stream", json=BODY) as response:
            await response.content.readany()
        return response.status == 200

    async def refused(self) -> bool:
        async with self._http.post("/answer", json={"question": ""}) as response:
            return response.status == 422

    async def watched(self) -> bool:
        async with self._http.get("/metrics") as response:
            return response.status == 200 and bool(await response.read())

    async def broken(self) -> bool:
        await send(self._target.port, next(self._broken))
        return True


async def soak(minutes: float) -> Soaked:
    with server("tests.load.server", *OPTIONS) as target:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(target.url, connector=connector, timeout=TIMEOUT) as http:
            callers = Callers(target, http)
            for _ in range(14):  # what is opened once and kept is no leak
                await callers.next()
            await asyncio.sleep(SETTLE_S)
            before = await Held.of(target)
            until = time.monotonic() + 60 * minutes
            async with asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(callers.go_on(until))
                memory = [value async for value in watched(target, until)]
        after = await settled(target, before, seconds=30)
    left_out = min(round(len(memory) / 5), round(WARM_S))
    return Soaked(before, after, memory[left_out:], callers.sent, callers.odd)


async def watched(target: ServerProcess, until: float) -> AsyncIterator[int]:
    """The resident bytes, every second."""
    while time.monotonic() < until:
        await asyncio.sleep(1)
        yield resident(target)


def resident(target: ServerProcess) -> int:
    return int(Path(f"/proc/{target.pid}/statm").read_text().split()[1]) * PAGE
