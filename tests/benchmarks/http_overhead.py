"""Own CPU of a `single` question, against a bare FastAPI endpoint and bare engine calls.

    python -m tests.benchmarks.http_overhead [--questions 400]

Aims: scripted engine and stub retriever <= 8 x (a FastAPI endpoint with 12 awaits that do nothing);
over an HTTP engine <= 2 x a bare aiohttp call per engine call. The servers run in processes of
their own and only their CPU is counted. Rounds alternate and medians are taken.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from tests.benchmarks.bench_server import NO_OPS
from tests.benchmarks.http_support import ServerProcess, in_ms, server

ROUNDS = 7
LANES = 4
REPLY = "true"  # one token for every call, which also reads as a route of `single`
Call = Callable[[], Awaitable[Any]]


async def run(call: Call, times: int) -> None:
    async def lane() -> None:
        for _ in range(times // LANES):
            await call()

    await asyncio.gather(*(lane() for _ in range(LANES)))


def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Call:
    async def call() -> None:
        async with session.post(url, json=body) as response:
            assert response.status == 200, await response.text()
            await response.read()

    return call


async def own_cpu(target: ServerProcess, call: Call, times: int) -> float:
    """CPU seconds of the server per call."""
    begin = target.cpu_s()
    await run(call, times)
    return (target.cpu_s() - begin) / times


async def scripted(questions: int) -> None:
    with server("tests.benchmarks.bench_server") as target:
        async with aiohttp.ClientSession() as session:
            body = {"question": "Who composed Norma?"}
            ask = post(session, f"{target.url}/answer", body)
            bare = post(session, f"{target.url}/bare", body)
            await run(ask, 40)
            await run(bare, 40)
            rows = [
                (await own_cpu(target, ask, questions), await own_cpu(target, bare, questions * 4))
                for _ in range(ROUNDS)
            ]
    show("scripted engine", rows, "the bare endpoint", 8)


async def over_http(questions: int) -> None:
    stub = server("tests.stubs.openai_server", "--reply", REPLY)
    with stub as engine, server("tests.benchmarks.bench_server", "--engine", engine.url) as target:
        async with aiohttp.ClientSession() as session:
            body = {"question": "Who composed Norma?", "route": "auto"}
            ask = post(session, f"{target.url}/answer", body)
            message = {"role": "user", "content": "word " * 100}
            completion = {
                "model": "stub-model", "messages": [message], "max_tokens": 8, "stream": True,
                "stream_options": {"include_usage": True},
            }  # fmt: skip
            bare = post(session, f"{engine.url}/chat/completions", completion)
            await run(ask, 40)
            await run(bare, 40)
            rows = []
            for _ in range(ROUNDS):
                own = await own_cpu(target, ask, questions)
                begin = time.process_time()
                await run(bare, questions * 4)
                rows.append((own / NO_OPS, (time.process_time() - begin) / (questions * 4)))
    show(f"HTTP engine, per call of {NO_OPS}", rows, "a bare aiohttp call", 2)


def show(name: str, rows: list[tuple[float, float]], yardstick: str, aim: float) -> None:
    own, bare = (statistics.median(column) for column in zip(*rows, strict=True))
    ratio = statistics.median(each / other for each, other in rows)
    print(
        f"{name}: own CPU {in_ms(own)}, {yardstick} {in_ms(bare)}, ratio {ratio:.2f} (aim <= {aim})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", type=int, default=400)
    options = parser.parse_args()
    asyncio.run(scripted(options.questions))
    asyncio.run(over_http(options.questions // 4))


if __name__ == "__main__":
    main()
