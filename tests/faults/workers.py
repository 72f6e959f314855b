"""What one bad worker of three costs 64 questions that are under way. The fault comes once the
first tokens are out; then all three workers are replaced one after the other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from service.answer.events import AnswerReady, Failed, Token, Withdraw
from service.answer.request import AnswerRequest
from service.checks import warm
from service.core.concurrency import closing
from service.core.settings import Settings
from service.engines import workers as limits
from service.engines.pool import PoolGenerator
from service.engines.workers import PoolLimits
from service.retrieval.base import anyone
from service.runtime import Runtime
from tests.server_nodes import free_port
from tests.support.asking import ScriptedRetriever
from tests.support.retrieval import open_scripted
from tests.support.workers import StubWorker, stub_worker, stub_workers

QUESTIONS = 64
REPLY = "it is the city of Catania on the island of Sicily where he was born"
OPTIONS = ("--reply", REPLY, "--token-delay", "0.03", "--first-delay", "0.02")
HANGS_S = 60.0

FAULTS: dict[str, Callable[[StubWorker], None]] = {
    "kill -9": StubWorker.kill,
    "SIGSTOP": StubWorker.stop,
    "answers 500": lambda worker: worker.tell(failure=500),
    "garbage": lambda worker: worker.tell(failure="garbage"),
    "cuts answers short": lambda worker: worker.tell(failure="cut"),
    "slow": lambda worker: worker.tell(token_delay=0.5),
}


QUICK = PoolLimits(resolve_s=0.2)  # a probe has as long as elsewhere: good workers are busy, too


@asynccontextmanager
async def pool_of(urls: Sequence[str], **engine: object) -> AsyncIterator[Runtime]:
    engine |= {"kind": "vllm", "urls": urls, "max_concurrency": 256}
    settings = Settings.model_validate({"engines": {"default": engine}})
    with mock.patch.object(limits, "LIMITS", QUICK):
        async with open_scripted(settings, retriever=ScriptedRetriever()) as runtime:
            yield runtime


@dataclass
class Response:
    """How one question ended. `whole`: the tokens that stand are the answer."""

    answer: str | None = None
    problem: str | None = None
    whole: bool = True


@dataclass
class Row:
    """What a fault did to the questions."""

    outcomes: list[Response] = field(default_factory=list)
    hung: int = 0

    @property
    def answered(self) -> int:
        return sum(outcome.answer == REPLY for outcome in self.outcomes)

    @property
    def failed(self) -> list[str]:
        return [outcome.problem for outcome in self.outcomes if outcome.problem]


async def ask(runtime: Runtime, number: int, on_token: Callable[[], None]) -> Response:
    """One question, as a watcher of its stream sees it."""
    outcome = Response()
    shown = ""
    request = await runtime.prepare(
        AnswerRequest(question=f"Where was person {number} born?", route="single"), anyone
    )
    async with closing(runtime.ask(request)) as events:
        async for event in events:
            match event:
                case Token(role="answer"):
                    shown += event.text
                    on_token()
                case Withdraw(role="answer"):
                    shown = ""
                case AnswerReady():
                    outcome.answer = event.body.answer
                    outcome.whole = shown == event.body.answer
                case Failed():
                    outcome.problem = event.problem.detail
    return outcome


async def survive(fault: Callable[[StubWorker], None]) -> Row:
    """All questions at once over three workers; `fault` befalls the first on the way."""
    row, begun = Row(), asyncio.Event()
    with stub_workers(3, OPTIONS) as workers:
        async with pool_of([worker.url for worker in workers]) as runtime:
            await warm(runtime)
            asked = [
                asyncio.create_task(ask(runtime, number, begun.set)) for number in range(QUESTIONS)
            ]
            await begun.wait()
            await asyncio.to_thread(fault, workers[0])
            done, hung = await asyncio.wait(asked, timeout=HANGS_S)
            row.hung = len(hung)
            for task in hung:
                task.cancel()
            row.outcomes = [task.result() for task in done]
    return row


async def roll(listed: list[str], port: int) -> Row:
    """Replace three workers one after the other while questions keep coming.

    `listed` is what the DNS says now: a worker is started and listed, an old one is delisted, and
    stopped once the pool has let go of it, as Kubernetes does it.
    """
    row, stop = Row(), asyncio.Event()

    def start(address: str) -> AbstractContextManager[StubWorker]:
        listed.append(address)
        return stub_worker("--host", address, "--port", str(port), *OPTIONS)

    with ExitStack() as old, ExitStack() as new:
        first = {f"127.0.0.{n}": old.enter_context(start(f"127.0.0.{n}")) for n in (2, 3, 4)}
        async with pool_of([f"http://workers:{port}/v1"], resolve=True) as runtime:
            pool = runtime.engines["default"]
            assert isinstance(pool, PoolGenerator)
            await warm(runtime)
            asking = [asyncio.create_task(_keep_asking(runtime, n, stop, row)) for n in range(16)]
            for number, (address, worker) in enumerate(first.items(), 5):
                new.enter_context(start(f"127.0.0.{number}"))
                await _until(lambda name=f"127.0.0.{number}:{port}": _phase(pool, name) == "up")
                listed.remove(address)
                await _until(lambda name=worker.name: _phase(pool, name) is None)
                worker.kill()
            stop.set()
            await asyncio.wait(asking, timeout=HANGS_S)
            row.hung = sum(not task.done() for task in asking)
    return row


async def _keep_asking(runtime: Runtime, number: int, stop: asyncio.Event, row: Row) -> None:
    while not stop.is_set():
        row.outcomes.append(await ask(runtime, number, lambda: None))


def _phase(pool: PoolGenerator, name: str) -> str | None:
    return next((worker.phase for worker in pool.workers() if worker.name == name), None)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANGS_S):
        while not holds():  # noqa: ASYNC110 (the pool has no event for it)
            await asyncio.sleep(0.02)


@contextmanager
def dns(listed: Sequence[str]) -> Iterator[None]:
    """In this process every name has the addresses that are listed now."""
    real = asyncio.base_events.BaseEventLoop.getaddrinfo

    async def getaddrinfo(self: Any, host: Any, port: Any, **options: Any) -> Any:
        if host != "workers":
            return await real(self, host, port, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port)) for name in listed]

    with mock.patch.object(asyncio.base_events.BaseEventLoop, "getaddrinfo", getaddrinfo):
        yield


def replace_all() -> Row:
    """`roll` on a free port under a name service of its own."""
    listed: list[str] = []
    with dns(listed):
        return asyncio.run(roll(listed, free_port()))
