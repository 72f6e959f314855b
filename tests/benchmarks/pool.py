"""The worker pool: what a second and a tenth worker bring, what choosing costs, what waiting costs.

    python -m tests.benchmarks.pool [scaling] [cost] [waiting]

Stub workers in processes of their own; a call takes 200 ms there and one worker serves eight at
once. Ratios of one run; rounds alternate and medians are taken.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from unittest import mock

import aiohttp

from service.core.concurrency import closing
from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest, Generator, complete
from service.engines.factory import open_generator
from service.engines.pool import workers as limits
from service.engines.pool.workers import PoolLimits
from service.telemetry.logs import configure_logging
from tests.benchmarks.http_support import in_ms, quantile
from tests.support.workers import stub_workers

SLOTS = 8
SERVICE_S = 0.2
CALLS_PER_WORKER = 160
ROUNDS = 5
WAITING = 2000


def pool(urls: Sequence[str], **more: int) -> Generator:
    settings = EngineSettings(
        kind="vllm", urls=list(urls), model="stub-model", max_concurrency=4096
    )
    own = PoolLimits(wait_s=600.0, **more)
    with mock.patch.object(limits, "LIMITS", own):
        return open_generator("pool", settings)


async def cpu_per_call(call: Callable[[], Awaitable[Any]], calls: int, at_once: int) -> float:
    """CPU milliseconds a call, `at_once` of them running."""

    async def lane() -> None:
        for _ in range(calls // at_once):
            await call()

    begin = time.process_time()
    await asyncio.gather(*(lane() for _ in range(at_once)))
    return (time.process_time() - begin) * 1000 / calls


async def throughput(urls: Sequence[str]) -> float:
    """Calls a second of a pool that always has work: twice as many callers as slots."""
    engine = pool(urls, per_worker=SLOTS)
    left = iter(range(CALLS_PER_WORKER * len(urls)))

    async def caller(question: str) -> None:
        for turn, _ in enumerate(left):
            await complete(engine, GenerationRequest(prompt="x", question=question, turn=turn))

    await engine.check()
    started = time.perf_counter()
    await asyncio.gather(*(caller(f"q{n}") for n in range(2 * SLOTS * len(urls))))
    seconds = time.perf_counter() - started
    await engine.aclose()
    return CALLS_PER_WORKER * len(urls) / seconds


def scaling() -> None:
    """Every round measures 1, 2 and 10 workers."""
    options = ("--slots", str(SLOTS), "--first-delay", str(SERVICE_S), "--reply", "yes")
    seconds: dict[int, list[float]] = {1: [], 2: [], 10: []}
    with stub_workers(10, options) as workers:
        urls = [worker.url for worker in workers]
        for _ in range(ROUNDS):
            for count, rates in seconds.items():
                rates.append(asyncio.run(throughput(urls[:count])))
    for count, aim in ((2, 1.9), (10, 9.0)):
        ratios = [many / one for many, one in zip(seconds[count], seconds[1], strict=True)]
        print(
            f"{count} workers / one: {statistics.median(ratios):.2f} times the calls a second "
            f"({statistics.median(seconds[count]):.0f} / {statistics.median(seconds[1]):.0f}), "
            f"aim >= {aim}"
        )


async def _cost(urls: Sequence[str]) -> None:
    many, request = pool(urls), GenerationRequest(prompt="word " * 300, max_tokens=16)
    one = open_generator(
        "one", EngineSettings(kind="openai", urls=list(urls[:1]), model="stub-model")
    )
    await many.check()
    questions = iter(range(10**9))

    async with aiohttp.ClientSession() as session:
        body = {"model": "stub-model", "prompt": request.prompt, "max_tokens": 16, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip

        async def bare() -> None:
            async with session.post(f"{urls[0]}/completions", json=body) as response:
                await response.read()

        async def pooled() -> None:
            asked = GenerationRequest(prompt=request.prompt, question=f"q{next(questions)}")
            await complete(many, asked)

        async def single() -> None:
            await complete(one, request)

        for at_once in (1, 16):
            await _compare(at_once, {"bare": bare, "single": single, "pool": pooled})
    await many.aclose()
    await one.aclose()


async def _compare(at_once: int, calls: dict[str, Callable[[], Awaitable[None]]]) -> None:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 1):
        for name, call in calls.items():
            milliseconds = await cpu_per_call(call, 320, at_once)
            if number:  # the first round warms up
                taken[name].append(milliseconds)
    bare, single, pooled = (statistics.median(taken[name]) for name in ("bare", "single", "pool"))
    added = statistics.median(
        (p - s) / b for p, s, b in zip(taken["pool"], taken["single"], taken["bare"], strict=True)
    )
    print(
        f"{at_once:2} at once: bare aiohttp {bare:.3f} ms CPU, one server's client {single:.3f}, "
        f"pool of four {pooled:.3f}; choice and bookkeeping {added:.2f} x bare (aim <= 1.2), "
        f"pool / client {pooled / single:.2f}"
    )


def cost() -> None:
    with stub_workers(4, ("--reply", "yes it is so indeed, they say")) as workers:
        asyncio.run(_cost([worker.url for worker in workers]))


async def _lag(seconds: float) -> list[float]:
    """How late a timer of 5 ms is, again and again."""
    late = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        begun = time.perf_counter()
        await asyncio.sleep(0.005)
        late.append(time.perf_counter() - begun - 0.005)
    return late


async def _waiting(url: str) -> None:
    engine = pool([url], per_worker=SLOTS)
    await engine.check()

    async def watch(number: int) -> None:
        request = GenerationRequest(prompt="x", question=f"q{number}")
        async with closing(engine.stream(request)) as deltas:
            async for _ in deltas:
                pass

    idle = await _lag(5.0)
    gc.collect()
    before = _memory()
    streams = [asyncio.create_task(watch(number)) for number in range(WAITING)]
    await asyncio.sleep(2.0)  # they have come
    busy = await _lag(10.0)
    each = (_memory() - before) / WAITING
    for stream in streams:
        stream.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*streams, return_exceptions=True)
    await engine.aclose()
    ratio = quantile(busy, 0.99) / quantile(idle, 0.99)
    print(
        f"{WAITING} streams waiting: {each / 1024:.1f} KiB each; event loop late by "
        f"{in_ms(quantile(busy, 0.99))} at p99, idle {in_ms(quantile(idle, 0.99))}: "
        f"{ratio:.2f} x (aim <= 5)"
    )


def _memory() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def waiting() -> None:
    options = ("--slots", str(SLOTS), "--first-delay", str(SERVICE_S), "--reply", "yes")
    with stub_workers(1, options) as (worker,):
        asyncio.run(_waiting(worker.url))


def main() -> None:
    configure_logging("warning")
    parts = {"scaling": scaling, "cost": cost, "waiting": waiting}
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
