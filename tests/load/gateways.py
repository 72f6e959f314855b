"""Two gateways on the same stores, under questions, while one of them or a store goes.

The clients do what a balancer and a careful caller do: they take the gateways in turns, and repeat
a question that got no answer at the other one, with the same `Idempotency-Key`. A question is lost
if that has not brought an answer within `WITHIN_S` of its first failure.
"""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from service.core.errors import NotFound
from service.core.settings import Settings
from service.retrieval.factory import open_retrieval
from tests.server_nodes import Restarted, free_port, restarted_qdrant
from tests.support.documents import ingest_documents
from tests.support.gateway import START_S, gateway
from tests.unit.retrieval.worlds import CORPUS

NAME = "default"
WITHIN_S = 10.0
LANES = 4  # callers, of whom each asks one question after the other
ANSWER_S = 60.0  # that a question may take where nothing fails
CALL_S = 0.1  # of a call of the engine
DRAIN_S = 20.0
PAUSE_S = 0.05  # between two tries
BODY = {
    "question": "Which volcano is near Catania?",
    "route": "single",
    "loop": "one_retrieval",
    "collection": NAME,
}
BOTH = "rolling restart, a store killed"
FAULTS = ("rolling restart", "a store killed", BOTH, "a gateway killed")


@dataclass(frozen=True)
class Told:
    """What became of a question. `tries` that brought no answer; `lacking`: a side was out."""

    answered: bool
    tries: tuple[str, ...] = ()
    lacking: bool = False


@dataclass
class Tally:
    questions: list[Told] = field(default_factory=list)

    @property
    def asked(self) -> int:
        return len(self.questions)

    @property
    def lost(self) -> int:
        return sum(not each.answered for each in self.questions)

    @property
    def retried(self) -> int:
        return sum(each.answered and bool(each.tries) for each in self.questions)

    @property
    def lacking(self) -> int:
        return sum(each.lacking for each in self.questions)


class Gateway:
    """A gateway in a process of its own, which can be started again at its address."""

    def __init__(self, retrieval: Mapping[str, Any], data: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._stack = AsyncExitStack()
        server = {"port": port, "drain_s": DRAIN_S, "max_running": 64}
        self._settings = {"server": server, "data_dir": str(data), "retrieval": retrieval}

    async def start(self) -> None:
        """Return once it is ready."""
        begun = gateway(self._settings, "--seconds", str(CALL_S))
        self._process = await self._stack.enter_async_context(begun)
        async with asyncio.timeout(START_S), aiohttp.ClientSession(self.url) as http:
            while not await _is_ready(http):  # noqa: ASYNC110 (it is another process)
                await asyncio.sleep(0.1)

    async def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end. Returns the exit code."""
        return await self._process.end(number)

    async def aclose(self) -> None:
        await self._stack.aclose()


async def _is_ready(http: aiohttp.ClientSession) -> bool:
    async with http.get("/readyz") as response:
        return response.status == 200


class Pair:
    """Both gateways and the store that is killed."""

    def __init__(self, gateways: Sequence[Gateway], qdrant: Restarted) -> None:
        self.gateways = gateways
        self.qdrant = qdrant
        self.exits: list[int] = []

    async def under(self, fault: str, for_s: float) -> Tally:
        """Ask for `for_s` before, and again after, the fault. A killed gateway stays away."""
        acts = {
            "a gateway killed": self._kill,
            "rolling restart": self._roll,
            "a store killed": self._lose_a_store,
            BOTH: self._roll_without_a_store,
        }
        tally, over = Tally(), asyncio.Event()
        load = asyncio.create_task(self._ask_until(over, tally))
        await asyncio.sleep(for_s)
        await acts[fault]()
        await asyncio.sleep(for_s)
        over.set()
        await load
        return tally

    async def _kill(self) -> None:
        await self.gateways[0].end(signal.SIGKILL)

    async def _roll(self) -> None:
        for each in self.gateways:
            self.exits.append(await each.end(signal.SIGTERM))
            await each.start()

    async def _roll_without_a_store(self) -> None:
        """A gateway is ready with one store alone, so that neither waits for the other."""
        await asyncio.gather(self._roll(), self._lose_a_store())

    async def _lose_a_store(self) -> None:
        await self.qdrant.kill()
        await asyncio.sleep(1.0)
        await self.qdrant.start()

    async def _ask_until(self, over: asyncio.Event, tally: Tally) -> None:
        urls = [each.url for each in self.gateways]

        async def lane() -> None:
            while not over.is_set():
                urls.reverse()
                tally.questions.append(await insist(http, tuple(urls)))
                await asyncio.sleep(PAUSE_S)

        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
            for _ in range(LANES):
                group.create_task(lane())


async def insist(
    http: aiohttp.ClientSession,
    urls: Sequence[str],
    body: Mapping[str, str] = BODY,
    within_s: float = WITHIN_S,
) -> Told:
    """Ask until there is an answer, at these gateways in turns; `within_s` of the first failure."""
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    tries: list[str] = []
    deadline = time.monotonic() + ANSWER_S
    while (left := deadline - time.monotonic()) > 0:
        url = urls[len(tries) % len(urls)]
        timeout = aiohttp.ClientTimeout(total=left)
        try:
            async with http.post(
                f"{url}/answer", json=body, headers=headers, timeout=timeout
            ) as response:
                if response.status == 200:
                    answer = await response.json()
                    return Told(True, tuple(tries), bool(answer["degraded"]))
                tries.append(str(response.status))
        except (aiohttp.ClientError, TimeoutError) as error:
            tries.append(type(error).__name__)
        if len(tries) == 1:
            deadline = time.monotonic() + within_s
        await asyncio.sleep(PAUSE_S)
    return Told(False, tuple(tries))


@asynccontextmanager
async def two_gateways(elasticsearch: str, script: Path, folder: Path) -> AsyncIterator[Pair]:
    """Over a small corpus, which is deleted at the end, in this Elasticsearch and a Qdrant that is
    started by its script."""
    async with AsyncExitStack() as stack:
        qdrant = await stack.enter_async_context(restarted_qdrant(script, folder))
        retrieval = {
            "elasticsearch_url": elasticsearch, "qdrant_url": qdrant.node.url,
            "embedding_model": "hashing",
        }  # fmt: skip
        await stack.enter_async_context(_corpus(retrieval, folder / "own"))
        gateways = [Gateway(retrieval, folder / name) for name in ("one", "two")]
        for each in gateways:
            stack.push_async_callback(each.aclose)
        await asyncio.gather(*(each.start() for each in gateways))
        yield Pair(gateways, qdrant)


@asynccontextmanager
async def _corpus(retrieval: Mapping[str, Any], data: Path) -> AsyncIterator[None]:
    """In the collection that probes search."""
    settings = Settings.model_validate({"data_dir": data, "retrieval": retrieval})
    async with open_retrieval(settings) as stores:
        with suppress(NotFound):
            await stores.collections.delete(NAME)
        await stores.collections.create(NAME)
        await ingest_documents(CORPUS, NAME, stores.collections)
        yield
        await stores.collections.delete(NAME)
