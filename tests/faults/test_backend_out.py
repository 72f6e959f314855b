"""Questions while Elasticsearch freezes, dies, drags or refuses: answered, in time, and whole again
by themselves."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import pytest

from service.answer.fold import collect
from service.answer.request import AnswerRequest
from service.core.domain import Answer
from service.core.errors import RetrievalFailure, RevelatorError
from service.core.settings import Settings
from service.retrieval.base import SearchRequest, anyone
from service.retrieval.search import guard
from service.retrieval.search.guard import GuardLimits
from service.runtime import Runtime, open_runtime
from tests.elasticsearch_node import running_elasticsearch
from tests.faults.proxy import Proxy, proxied
from tests.support.documents import ingest_documents
from tests.support.scripted import ScriptedGenerator, ScriptStep
from tests.support.signals import suspend
from tests.unit.retrieval.worlds import CORPUS

pytestmark = pytest.mark.anyio

TIMEOUT_S = 1.0
QUESTION = "Which volcano is near Catania?"
LANES = 4
LIMITS = GuardLimits(failures=3, open_s=0.3)


@pytest.fixture(autouse=True)
def _quick_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LIMITS", LIMITS)


class World:
    """The service over a scripted engine, with BM25 in Elasticsearch, vectors embedded."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.runtime = runtime
        self.name = name

    async def ask(self) -> Answer:
        request = await self.runtime.prepare(
            AnswerRequest(question=QUESTION, route="single", collection=self.name), anyone
        )
        answer = await collect(self.runtime.ask(request))
        assert isinstance(answer, Answer)
        return answer

    def metric(self, line: str) -> bool:
        return line in self.runtime.metrics.render().decode().splitlines()

    def breaker_is(self, state: str) -> bool:
        return self.metric(
            'revelator_breaker_state{backend="elasticsearch",'
            f'revelator_breaker_state="{state}"}} 1.0'
        )


@asynccontextmanager
async def opened(data: Path, url: str) -> AsyncIterator[World]:
    retrieval = {
        "elasticsearch_url": url,
        "embedding_model": "hashing",
        "timeout_s": TIMEOUT_S,
    }
    engine = ScriptedGenerator(
        [
            ScriptStep(match="Task: relevance", reply=["true"], times=None),
            ScriptStep(match="Task: answer", reply="Etna", times=None),
        ]
    )
    settings = Settings.model_validate({"data_dir": data, "retrieval": retrieval})
    name = f"out-{uuid.uuid4().hex[:8]}"
    async with open_runtime(settings, engines={"default": engine}) as runtime:
        assert runtime.stores is not None
        await runtime.stores.collections.create(name)
        await ingest_documents(CORPUS, name, runtime.stores.collections)
        yield World(runtime, name)


class Load:
    """Lanes that ask again and again; what the answers lacked, and how long they took."""

    def __init__(self, world: World) -> None:
        self.lacked: list[list[str]] = []
        self.seconds: list[float] = []
        self._world = world

    async def lane(self) -> None:
        while True:
            started = time.monotonic()
            answer = await self._world.ask()
            assert answer.answer == "Etna"
            assert any(hit.passage_id == "etna" for hit in answer.citations)
            self.seconds.append(time.monotonic() - started)
            self.lacked.append(answer.degraded)
            await anyio.sleep(0.01)

    async def until_newest_lack(self, what: list[str]) -> None:
        """Until as many answers in a row as there are lanes lack just this."""
        start = len(self.lacked)
        await until(
            lambda: (
                len(self.lacked) >= start + 2 * LANES
                and all(lacked == what for lacked in self.lacked[-2 * LANES :])
            )
        )


@asynccontextmanager
async def loaded(world: World) -> AsyncIterator[Load]:
    load = Load(world)
    async with anyio.create_task_group() as group:
        for _ in range(LANES):
            group.start_soon(load.lane)
        yield load
        group.cancel_scope.cancel()


async def until(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    with anyio.fail_after(within_s):
        while not holds():  # noqa: ASYNC110 - what it waits for is in another process
            await anyio.sleep(0.02)


@pytest.mark.timeout(300)
async def test_frozen_then_killed_under_load(tmp_path: Path, elasticsearch_script: Path) -> None:
    folder = tmp_path / "elasticsearch"
    run = anyio.to_thread.run_sync
    with ExitStack() as nodes:
        node = nodes.enter_context(running_elasticsearch(elasticsearch_script, data=folder))
        async with opened(tmp_path / "data", node.url) as world, loaded(world) as load:
            await load.until_newest_lack([])
            assert world.breaker_is("closed")

            suspend(node.process.pid)
            await until(lambda: world.breaker_is("open"))
            await load.until_newest_lack(["bm25"])
            node.process.send_signal(signal.SIGCONT)
            await load.until_newest_lack([])
            assert world.breaker_is("closed")

            node.process.kill()
            await run(node.process.wait, 30)
            await until(lambda: world.breaker_is("open"))
            await load.until_newest_lack(["bm25"])
            port = int(node.url.rpartition(":")[2])
            again = running_elasticsearch(elasticsearch_script, port, folder)
            await run(nodes.enter_context, again)
            await load.until_newest_lack([])
            assert world.breaker_is("closed")
            assert max(load.seconds) < TIMEOUT_S + 1.5


@pytest.fixture
async def proxy(elasticsearch_url: str) -> AsyncIterator[Proxy]:
    async with proxied(elasticsearch_url) as made:
        yield made


@pytest.fixture
async def world(tmp_path: Path, proxy: Proxy) -> AsyncIterator[World]:
    async with opened(tmp_path, proxy.url) as made:
        assert (await made.ask()).degraded == []
        yield made
        proxy.delay_s, proxy.status = 0.0, None
        assert made.runtime.stores is not None
        await made.runtime.stores.collections.delete(made.name)


async def test_a_backend_that_drags_is_left_out_in_time(world: World, proxy: Proxy) -> None:
    proxy.delay_s = 30.0
    started = time.monotonic()
    answer = await world.ask()
    assert (answer.answer, answer.degraded) == ("Etna", ["bm25"])
    assert time.monotonic() - started < TIMEOUT_S + 1.5
    proxy.delay_s = 0.0
    for _ in range(20):  # a busy machine answers its first search late
        if not (answer := await world.ask()).degraded:
            break
        await anyio.sleep(0.1)
    assert answer.degraded == []


async def test_wrong_credentials_are_said_once_and_not_retried(world: World, proxy: Proxy) -> None:
    proxy.status, proxy.requests = 401, 0
    assert (await world.ask()).degraded == ["bm25"]
    assert proxy.requests == 1
    with pytest.raises(RetrievalFailure, match=r"rejected the credentials .*elasticsearch_key"):
        await world.runtime.retriever.search(SearchRequest(QUESTION, 1, world.name, "bm25"))
    for _ in range(LIMITS.failures + 1):
        await world.ask()
    assert world.breaker_is("closed")  # it answers: to leave it alone would hide why


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_refusal_that_passes_is_not_seen(world: World, proxy: Proxy, status: int) -> None:
    proxy.status, proxy.refusals = status, 2
    assert (await world.ask()).degraded == []
    assert world.metric('revelator_retrieval_retries_total{backend="elasticsearch"} 2.0')
    assert not world.metric('revelator_retrieval_failures_total{backend="elasticsearch"} 1.0')


async def test_a_read_only_index_refuses_writes_and_answers(world: World, proxy: Proxy) -> None:
    stores = world.runtime.stores
    assert stores is not None
    async with aiohttp.ClientSession(proxy.url, raise_for_status=True) as http:
        index = f"/revelator-{world.name}.1/_settings"
        (await http.put(index, json={"index.blocks.read_only": True})).release()
        more = [{"id": "more", "text": "One more document."}]
        with pytest.raises(RevelatorError, match="blocks writing to its index"):
            await ingest_documents(more, world.name, stores.collections)
        answer = await world.ask()
        assert (answer.answer, "bm25" in answer.degraded) == ("Etna", False)
        (await http.put(index, json={"index.blocks.read_only": None})).release()
    await ingest_documents(more, world.name, stores.collections)
    assert (await world.ask()).degraded == []
