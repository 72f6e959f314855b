"""CPU of the OpenAI client per call, as a ratio to a bare aiohttp call of the same stream.

    python -m tests.benchmarks.client_cpu [--calls 400] [--tokens 16]

Prints one line per concurrency; the aim is a ratio of at most 2. The stub server runs in a process
of its own, so only the client's CPU is counted. Rounds alternate and the median is taken.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest, Message, complete
from service.engines.openai import OpenAIGenerator

ROUNDS = 7
Call = Callable[[], Awaitable[Any]]


async def cpu_per_call(call: Call, calls: int, at_once: int) -> float:
    """CPU milliseconds a call, `at_once` of them running."""

    async def lane() -> None:
        for _ in range(calls // at_once):
            await call()

    begin = time.process_time()
    await asyncio.gather(*(lane() for _ in range(at_once)))
    return (time.process_time() - begin) * 1000 / calls


async def measure(url: str, calls: int, tokens: int) -> None:
    generator = OpenAIGenerator("stub", EngineSettings(kind="openai", urls=[url], model="m"))
    messages = (Message("user", "Task: answer\nQuestion: who? " + "word " * 300),)
    request = GenerationRequest(messages=messages, max_tokens=tokens)
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": messages[0].content}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with aiohttp.ClientSession() as session:

        async def bare() -> None:
            async with session.post(f"{url}/chat/completions", json=body) as response:
                await response.read()

        async def own() -> None:
            await complete(generator, request)

        for at_once in (1, 16):
            ratios, owns, bares = [], [], []
            await cpu_per_call(own, 32, at_once)
            await cpu_per_call(bare, 32, at_once)
            for _ in range(ROUNDS):
                bares.append(await cpu_per_call(bare, calls, at_once))
                owns.append(await cpu_per_call(own, calls, at_once))
                ratios.append(owns[-1] / bares[-1])
            print(
                f"{tokens} tokens, {at_once:2} at once: own {statistics.median(owns):.3f} ms, "
                f"bare aiohttp {statistics.median(bares):.3f} ms, "
                f"ratio {statistics.median(ratios):.2f} (aim <= 2)"
            )
    await generator.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=320)
    parser.add_argument("--tokens", type=int, nargs="*", default=[1, 16])
    options = parser.parse_args()
    reply = " ".join(["word"] * 64)
    command = [sys.executable, "-m", "tests.stubs.openai_server", "--reply", reply]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        for tokens in options.tokens:
            asyncio.run(measure(url, options.calls, tokens))
        server.terminate()


if __name__ == "__main__":
    main()
