"""What token signals cost a vLLM worker in tokens per second.

    VLLM_PYTHON=… python -m tests.benchmarks.signals_cost [--pairs 20] [--concurrency 1 8 32]
    python -m tests.benchmarks.signals_cost --url http://127.0.0.1:8000/v1 …  (a running worker)

Prints tokens/s with signals over tokens/s of the same prompts without, for entropies alone and
with attention: alternating pairs, median of ratios (aim >= 0.97). Without --model the shipped one,
made heavy (tests/stubs/wide_model.py), is served by VLLM_PYTHON. Prompts have 700 tokens, which
both sides find in the prefix cache, so that writing is what is timed. Last, requests that ask for
none are timed at this worker and at one without the plugin: the interval should include 1. That no
step of theirs calls the plugin is counted by tests/unit/vllm_plugin/test_tap.py.
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
from service.engines.vllm import VllmGenerator
from tests.stubs.wide_model import save_wide_model
from tests.support.drafts import drafted, with_attention
from tests.support.tiny import TINY
from tests.support.vllm import vllm_server
from tests.support.vllm_plugin import FLAGS, plugin_environment

Worker = TypeVar("Worker", bound=Generator)
Call = Callable[[Worker, str, int], Coroutine[Any, Any, int]]


async def without(worker: Generator, prompt: str, most: int) -> int:
    request = GenerationRequest(prompt=prompt, max_tokens=most)
    return (await complete(worker, request)).usage.completion_tokens


async def entropies(worker: VllmGenerator, prompt: str, most: int) -> int:
    return await _draft(
        worker, GenerationRequest(prompt=prompt, max_tokens=most, signals="entropy")
    )


async def attention(worker: VllmGenerator, prompt: str, most: int) -> int:
    return await _draft(worker, with_attention(prompt, most))


async def _draft(worker: VllmGenerator, request: GenerationRequest) -> int:
    if usage := (await drafted(worker, request)).last.usage:
        return usage.completion_tokens
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


Side = tuple[VllmGenerator, Call[VllmGenerator]]


async def compare(name: str, one: Side, base: Side, concurrency: int, given: Any) -> None:
    """Print the tokens/s of one side over those of the other."""
    texts = prompts(concurrency)
    ratios, plain = [], []
    for number in range(given.pairs + 1):
        rates = {}
        for side in (base, one) if number % 2 else (one, base):
            rates[side] = await rate(*side, texts, given.tokens)
        if number:  # the first compiles, and fills the prefix cache
            ratios.append(rates[one] / rates[base])
            plain.append(rates[base])
    spread = statistics.quantiles(ratios, n=4) if given.pairs > 1 else [ratios[0]] * 3
    mean, error = statistics.fmean(ratios), 0.0
    if given.pairs > 1:
        error = 2 * statistics.stdev(ratios) / given.pairs**0.5
    print(
        f"concurrency {concurrency:>2}, {name}: {statistics.median(ratios):.3f} "
        f"(quartiles {spread[0]:.3f} to {spread[2]:.3f}; mean {mean:.3f} ± {error:.3f}), "
        f"{statistics.median(plain):.0f} tokens/s without",
        flush=True,
    )


async def measure(urls: Sequence[str], arguments: argparse.Namespace) -> None:
    workers = []
    for url in urls:
        settings = EngineSettings(kind="vllm", urls=[url], timeout_s=300, max_concurrency=256)
        workers.append(VllmGenerator("worker", settings))
        await workers[-1].check()
    worker, stock = workers[0], workers[-1]
    try:
        for concurrency in arguments.concurrency:
            base: Side = (worker, without)
            await compare("entropies", (worker, entropies), base, concurrency, arguments)
            await compare("attention", (worker, attention), base, concurrency, arguments)
            if stock is not worker:
                await compare("asks for none", base, (stock, without), concurrency, arguments)
    finally:
        for each in workers:
            await each.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    with ExitStack() as stack:
        urls = [arguments.url]
        if arguments.url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            model = arguments.model or save_wide_model(TINY, folder / "model")
            options = ["--model", str(model), "--block-size", "32"]
            environment = plugin_environment(folder)
            servers = [
                vllm_server(folder / "log", *options, *FLAGS, environment=environment),
                vllm_server(folder / "stock", *options),
            ]
            started = [stack.enter_context(server) for server in servers]
            for each in started:
                each.wait()
            urls = [each.url for each in started]
        asyncio.run(measure(urls, arguments))


if __name__ == "__main__":
    main()
