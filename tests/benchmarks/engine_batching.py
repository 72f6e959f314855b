"""What batching gains in the engine in the process, as ratios within one run.

    python -m tests.benchmarks.engine_batching [--model FOLDER] [--rounds 5]

Prints: ten answers of 32 tokens together over one (aim <= 4), and ten judgements together over ten
in sequence (aim <= 1.1). Without --model the shipped model is taken, or, where its weights are
not there, a random one of its shape.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest, Message, complete
from service.engines.transformers import LocalGenerator
from tests.stubs.tiny_model import save_tiny_model
from tests.support.tiny import TINY

EMBEDDED_SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 5120,
}
Measured = Callable[[], Awaitable[Any]]


async def seconds(run: Measured) -> float:
    begin = time.perf_counter()
    await run()
    return time.perf_counter() - begin


async def ratio(numerator: Measured, denominator: Measured, rounds: int) -> tuple[float, str]:
    """Median ratio of alternating rounds, and the medians in milliseconds."""
    pairs = [(await seconds(numerator), await seconds(denominator)) for _ in range(rounds)]
    above, below = (statistics.median(side) * 1000 for side in zip(*pairs, strict=True))
    return statistics.median(a / b for a, b in pairs), f"{above:.0f} ms : {below:.0f} ms"


def answers(words: int) -> list[GenerationRequest]:
    """Ten different prompts of about `words` words; 32 tokens each."""
    text = "the film was made in the city of Paris by a director from London " * (words // 13 + 1)
    prompts = [" ".join([str(n), *text.split()][:words]) for n in range(10)]
    return [GenerationRequest(messages=(Message("user", p),), max_tokens=32) for p in prompts]


def judgements(words: int = 100) -> list[GenerationRequest]:
    return [
        GenerationRequest(messages=r.messages, choices=("true", "false"), max_tokens=4)
        for r in answers(words)
    ]


async def measure(model: str, rounds: int) -> None:
    engine = LocalGenerator("local", EngineSettings(model=model))
    await engine.check()
    _never_end(engine)
    for words in (10, 60, 300):
        requests = answers(words)

        async def ten(requests: list[GenerationRequest] = requests) -> None:
            done = await asyncio.gather(*(complete(engine, r) for r in requests))
            assert all(c.usage.completion_tokens == 32 for c in done)

        async def one(requests: list[GenerationRequest] = requests) -> None:
            await complete(engine, requests[0])

        await ten()
        value, times = await ratio(ten, one, rounds)
        print(f"ten answers of 32 tokens, prompts of {words} words: {value:.2f} x one ({times})")
    requests = judgements()
    tokens = (await complete(engine, requests[0])).usage.prompt_tokens

    async def together() -> None:
        await asyncio.gather(*(complete(engine, r) for r in requests))

    async def in_sequence() -> None:
        for request in requests:
            await complete(engine, request)

    value, times = await ratio(together, in_sequence, rounds)
    print(f"ten judgements of {tokens} tokens: {value:.2f} x ten in sequence ({times}; aim <= 1.1)")
    await engine.aclose()


def _never_end(engine: LocalGenerator) -> None:
    """Let no end token end an answer: all must have their 32 tokens."""
    worker: Any = engine._worker
    worker._engine._ends = frozenset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model is None and (TINY / "config.json").is_file():
            model = str(TINY)
        if model is None:
            print("the shipped model's weights are not there: a random model of its shape")
            model = str(save_tiny_model(Path(folder), context=2048, shape=EMBEDDED_SHAPE))
        asyncio.run(measure(model, options.rounds))


if __name__ == "__main__":
    main()
