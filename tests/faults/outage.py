"""One fault of a store under the running service: probes, questions, the way back, and the data.

The service is the real one on a real socket, with a scripted engine, collection `default`, and one
side on a real server. The other side is embedded and answers meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import aiohttp

from service.core.errors import RevelatorError
from service.retrieval.collections.catalog import Collections
from tests.faults.proxy import Act
from tests.support.documents import ingest_documents
from tests.support.live import Live, answering, config, live
from tests.unit.retrieval.worlds import CORPUS

NAME: Final = "default"  # so that probes search it
QUESTION: Final = "Which volcano is near Catania?"
PROBE_EVERY_S: Final = 0.25
# A probe may be answered from checks as old as a second, or, where the machine is busy and the next
# ones are late, from those before.
FRESH_S: Final = 1.8
QUESTION_EVERY_S: Final = 0.1
PATIENCE_S: Final = 60.0

# In tests, which run on busy machines.
FOR_S: Final = {"frozen": 5.0, "killed": 5.0}
BRIEFLY_S: Final = FRESH_S + 1.5  # several probes after the first checks have aged
SEARCH_S: Final = 2.0  # what a search may take by default
SLACK_S: Final = 1.5
BACK_S: Final = 6.0
CLEAR_S: Final = 10.0


class Counts(NamedTuple):
    """Questions that were answered; answered without one side, saying so; refused with an error
    that says why; or lost: no answer, no error, and no answer to another try."""

    answered: int = 0
    degraded: int = 0
    refused: int = 0
    lost: int = 0


@dataclass(frozen=True)
class Asked:
    """`lacking`: the sides that an answer went without; None where there was no answer, which the
    service said where it was `refused`."""

    seconds: float
    lacking: tuple[str, ...] | None
    refused: bool = False


@dataclass(frozen=True)
class Probed:
    """`at_s`: since the fault began."""

    at_s: float
    seconds: float
    status: int
    degraded: tuple[str, ...]


@dataclass
class Outage:
    """What one fault did. Seconds; `own_s` is a question's time before it, `clear_s` is how long
    `/readyz` still told of the fault when answers lacked nothing any more."""

    own_s: float
    probes: list[Probed] = field(default_factory=list)
    questions: list[Asked] = field(default_factory=list)
    back_s: float | None = None
    clear_s: float | None = None
    problem: str | None = None

    @property
    def counts(self) -> Counts:
        refused = sum(asked.refused for asked in self.questions)
        return Counts(
            answered=sum(asked.lacking == () for asked in self.questions),
            degraded=sum(bool(asked.lacking) for asked in self.questions),
            refused=refused,
            lost=sum(asked.lacking is None for asked in self.questions) - refused,
        )

    @property
    def lost_first_s(self) -> float:
        """The most that one of the first two questions took longer than its own time."""
        return max(0.0, max(asked.seconds for asked in self.questions[:2]) - self.own_s)

    @property
    def lost_later_s(self) -> float:
        """The same from the third question on. One of several may have waited for the machine."""
        later = sorted(asked.seconds for asked in self.questions[2:])
        return max(0.0, later[-2:][0] - self.own_s) if later else 0.0

    @property
    def settled(self) -> list[Probed]:
        """Probes that cannot have been answered from before the fault."""
        return [probe for probe in self.probes if probe.at_s > FRESH_S]


class Service:
    """The running service and the side of it that is on a server. `varied`: no question is asked
    twice, so that nothing about it is remembered."""

    def __init__(self, running: Live, side: str) -> None:
        self.live = running
        self.side = side
        self.varied = False
        self._written = self._asked = 0

    @property
    def collections(self) -> Collections:
        found: Collections = self.live.app.state.runtime.retrieval.collections
        return found

    async def ask(self) -> Asked:
        started = time.monotonic()
        self._asked += 1
        question = f"{QUESTION} ({self._asked})" if self.varied else QUESTION
        status, body = await self.live.ask(question, collection=NAME, route="single")
        seconds = time.monotonic() - started
        if status != 200 or body["answer"] != "Etna":
            return Asked(seconds, None, refused=status != 200)
        return Asked(seconds, tuple(each for each in body["degraded"] if each == self.side))

    async def probe(self, since: float) -> Probed:
        started = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=10)
        async with self.live.http.get("/readyz", timeout=timeout) as response:
            body = await response.json()
        degraded = tuple(body.get("degraded") or ())
        return Probed(started - since, time.monotonic() - started, response.status, degraded)

    async def write(self) -> str | None:
        """One more document; why it could not be written."""
        self._written += 1
        document = {"id": f"more-{self._written}", "text": f"Word {self._written}."}
        try:
            await ingest_documents([document], NAME, self.collections)
        except RevelatorError as error:
            return error.detail
        return None

    async def damage(self) -> str | None:
        """What is wrong with the data: both stores passage by passage, then one more write."""
        if problem := await self.write():
            return f"a write fails: {problem}"
        report = await self.collections.check(NAME)
        if report.findings:
            return "; ".join(finding.detail for finding in report.findings)
        if not report.passages == report.vectors >= len(CORPUS) + 1:
            return f"{report.passages} passages, {report.vectors} vectors"
        return None

    async def repair(self) -> None:
        await self.collections.check(NAME, repair=True)


@asynccontextmanager
async def served(data: Path, side: str, retrieval: Mapping[str, Any]) -> AsyncIterator[Service]:
    """With `CORPUS` in collection `default`."""
    settings = config(data, retrieval=retrieval)
    async with live(answering("Etna"), settings=settings, own_stores=True) as running:
        service = Service(running, side)
        await service.collections.create(NAME)
        await ingest_documents(CORPUS, NAME, service.collections)
        yield service


async def outage(service: Service, breaks: Act, heals: Act, for_s: float) -> Outage:
    """Break it under questions and probes, heal it after `for_s`, and see when it is whole."""
    own = [(await service.ask()).seconds for _ in range(5)]
    told = Outage(own_s=median(own))
    await breaks()
    since = time.monotonic()
    async with asyncio.TaskGroup() as group:
        group.create_task(_probe(service, told, since, for_s))
        while time.monotonic() < since + for_s:
            told.questions.append(await service.ask())
            await asyncio.sleep(QUESTION_EVERY_S)
    await heals()
    told.back_s = await _back(service)
    with contextlib.suppress(RevelatorError):
        told.problem = "no answer to the check"
        told.problem = await service.damage()
    told.clear_s = await _clear(service)
    return told


async def _probe(service: Service, told: Outage, since: float, for_s: float) -> None:
    while time.monotonic() < since + for_s:
        told.probes.append(await service.probe(since))
        await asyncio.sleep(PROBE_EVERY_S)


async def _back(service: Service) -> float | None:
    """Seconds until an answer lacks nothing."""
    healed = time.monotonic()
    while time.monotonic() < healed + PATIENCE_S:
        if (await service.ask()).lacking == ():
            return time.monotonic() - healed
        await asyncio.sleep(QUESTION_EVERY_S)
    return None


async def _clear(service: Service) -> float | None:
    """Seconds until a probe tells of nothing; None if it always does."""
    started = time.monotonic()
    while (waited := time.monotonic() - started) < CLEAR_S:
        if not (await service.probe(started)).degraded:
            return waited
        await asyncio.sleep(PROBE_EVERY_S)
    return None


def check(told: Outage, side: str, *, harmless: bool = False, fault: str = "") -> None:
    """That questions and probes went on, nothing was lost, and all was whole again soon."""
    assert {asked.lacking for asked in told.questions} == {() if harmless else (side,)}, fault
    assert told.settled, fault
    full = fault == "disk full"  # harmless to questions, but told
    for probe in told.settled:
        degraded = full or not harmless
        assert (probe.status, bool(probe.degraded)) == (200, degraded), (fault, told.probes)
        assert not full or all(each.startswith("disk: ") for each in probe.degraded), told.probes
        assert probe.seconds < 1.0 + SLACK_S, (fault, probe)
    assert told.lost_first_s < SEARCH_S + SLACK_S, (fault, told.questions)
    assert told.lost_later_s < SLACK_S, (fault, told.questions)
    assert told.problem is None
    assert told.back_s is not None
    assert told.back_s < BACK_S
    assert told.clear_s is not None, fault
