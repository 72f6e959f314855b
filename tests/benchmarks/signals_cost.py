"""What token signals cost a vLLM worker in tokens per second.

    VLLM_PYTHON=… python -m tests.benchmarks.signals_cost [--pairs 20] [--concurrency 1 8 32]
    python -m tests.benchmarks.signals_cost --url http://127.0.0.1:8000/v1 …  (a running worker)

Prints tokens/s with signals over tokens/s of the same prompts without, for entropies alone and
with attention: alternating pairs, median of ratios (aim >= 0.95 at 100 M parameters). Without
--model the shipped one, made heavy (tests/stubs/wide_model.py), is served by VLLM_PYTHON. Prompts
have 700 tokens, which both sides find in the prefix cache, so that writing is what is timed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from service.core.concurrency import gather
from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest, Generator, complete
from service.engines.signals import SignalRequest
from service.engines.vllm import VllmGenerator
from tests.stubs.wide_model import save_wide_model
from tests.support.tiny import TINY
from tests.support.vllm import vllm_server
from tests.support.vllm_plugin import FLAGS, plugin_environment

Worker = TypeVar("Worker", bound=Generator)
Call = Callable[[Worker, str, int], Coroutine[Any, Any, int]]


async def without(worker: Generator, prompt: str, most: int) -> int:
    request = GenerationRequest(prompt=prompt, max_tokens=most)
    return (await complete(worker, request)).usage.completion_tokens


async def entropies(worker: VllmGenerator, prompt: str, most: int) -> int:
    return await _draft(worker, SignalRequest(prompt, most))


async def attention(worker: VllmGenerator, prompt: str, most: int) -> int:
    return await _draft(worker, SignalRequest(prompt, most, attention=True))


async def _draft(worker: VllmGenerator, request: SignalRequest) -> int:
    async with worker.signals(request) as call:
        async for delta in call:
            if delta.usage is not None:
                return delta.usage.completion_tokens
    raise RuntimeError("a draft without an end")


def prompts(count: int) -> list[str]:
    """Of about 700 tokens, as a loop's prompts are, the same but for their ends."""
    sentences = " ".join(f"City number {n} lies on the river." for n in range(60))
    return [f"{sentences} City number {60 + n}" for n in range(count)]


async def rate(worker: Worker, call: Call[Worker], texts: Sequence[str], most: int) -> float:
    """Tokens a second over all calls at once."""
    begin = time.perf_counter()
    made = await gather([partial(call, worker, text, most) for text in texts])
    return sum(made) / (time.perf_counter() - begin)


async def compare(worker: VllmGenerator, concurrency: int, pairs: int, most: int) -> None:
    texts = prompts(concurrency)
    for name, call in (("entropies", entropies), ("attention", attention)):
        await rate(worker, without, texts, most)
        await rate(worker, call, texts, most)
        ratios, plain = [], []
        for number in range(pairs):
            sides = (without, call) if number % 2 else (call, without)
            rates = {side: await rate(worker, side, texts, most) for side in sides}
            ratios.append(rates[call] / rates[without])
            plain.append(rates[without])
        spread = statistics.quantiles(ratios, n=4) if pairs > 1 else [ratios[0]] * 3
        print(
            f"concurrency {concurrency:>2}, {name}: {statistics.median(ratios):.3f} "
            f"(quartiles {spread[0]:.3f} to {spread[2]:.3f}), "
            f"{statistics.median(plain):.0f} tokens/s without",
            flush=True,
        )


async def measure(url: str, arguments: argparse.Namespace) -> None:
    settings = EngineSettings(kind="vllm", urls=[url], timeout_s=300, max_concurrency=256)
    worker = VllmGenerator("worker", settings)
    try:
        await worker.check()
        for concurrency in arguments.concurrency:
            await compare(worker, concurrency, arguments.pairs, arguments.tokens)
    finally:
        await worker.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    with ExitStack() as stack:
        url = arguments.url
        if url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            model = arguments.model or save_wide_model(TINY, folder / "model")
            options = ["--model", str(model), "--block-size", "32", *FLAGS]
            environment = plugin_environment(folder)
            server = stack.enter_context(
                vllm_server(folder / "log", *options, environment=environment)
            )
            server.wait()
            url = server.url
        asyncio.run(measure(url, arguments))


if __name__ == "__main__":
    main()
