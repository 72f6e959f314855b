"""Tokens a second of the embedded engine, and beside onnxruntime-genai on the same weights.

    python -m tests.benchmarks.embedded_engine COMPILED [--genai FOLDER] [--tokens 64]

COMPILED is a folder that `revelator compile` made; FOLDER one of `python -m
onnxruntime_genai.models.builder -p int4 -e cpu` with the same settings (int4_block_size=32,
int4_accuracy_level=4), where that package is installed. Figures are medians of turns that the two
take one after the other, in one run, on as many threads.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

from service.core.concurrency import closing
from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest
from service.engines.embedded import EmbeddedGenerator

CALLS = 8
PROMPTS = (100, 400)  # tokens
TEXT = "Sergio Leone was an Italian film director who was born in Rome in the year of the fire. "


class Ours:
    """The embedded engine, asked as the service asks it."""

    def __init__(self, folder: Path, threads: int) -> None:
        settings = EngineSettings(kind="embedded", model=str(folder))
        self.engine = EmbeddedGenerator("embedded", settings, threads=threads)
        self.numbers = count()

    async def prompt_of(self, tokens: int) -> str:
        """Each time another one, so that nothing of it is in the engine's prefix cache."""
        text = f"{next(self.numbers):03} " + TEXT * tokens
        spans = await self.engine.token_spans(text)
        return text[: spans[tokens - 2][1]]  # one more begins every prompt

    async def prompt_rate(self, tokens: int) -> float:
        request = GenerationRequest(prompt=await self.prompt_of(tokens), max_tokens=1)
        begun = time.perf_counter()
        await self._first(request)
        return tokens / (time.perf_counter() - begun)

    async def decode_rate(self, calls: int, tokens: int) -> float:
        """Of all calls together, from the moment that all of them have begun to write."""
        prompt = await self.prompt_of(PROMPTS[0])
        request = GenerationRequest(prompt=prompt, max_tokens=tokens, temperature=1e-6)
        written = await asyncio.gather(*(self._times(request) for _ in range(calls)))
        begun = max(times[0] for times in written)
        ended = min(times[-1] for times in written)
        return sum(begun < at <= ended for times in written for at in times) / (ended - begun)

    async def _first(self, request: GenerationRequest) -> None:
        async with closing(self.engine.stream(request)) as deltas:
            async for delta in deltas:
                if delta.usage is not None:
                    return

    async def _times(self, request: GenerationRequest) -> list[float]:
        """When each piece came; the prompt goes on in one line, so each token is a piece."""
        times: list[float] = []
        async with closing(self.engine.stream(request)) as deltas:
            async for delta in deltas:
                times += [time.perf_counter()] if delta.text else []
        return times


class Genai:
    """onnxruntime-genai's generator, a batch of equal prompts."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime_genai

        self.library: Any = onnxruntime_genai
        self.model: Any = onnxruntime_genai.Model(str(folder))

    def run(self, ids: list[int], calls: int, tokens: int) -> tuple[float, float]:
        """Prompt tokens and tokens a second of all calls together."""
        options = self.library.GeneratorParams(self.model)
        length = len(ids) + tokens
        options.set_search_options(
            batch_size=calls, max_length=length, min_length=length, do_sample=False
        )
        generator = self.library.Generator(self.model, options)
        begun = time.perf_counter()
        generator.append_tokens([ids] * calls)
        generator.generate_next_token()
        read = time.perf_counter()
        for _ in range(tokens - 1):
            generator.generate_next_token()
        ended = time.perf_counter()
        return calls * len(ids) / (read - begun), calls * (tokens - 1) / max(ended - read, 1e-9)


async def measured(turns: int, *turn: Callable[[], Awaitable[float]]) -> list[float]:
    """The median of each, taken in turns; the first round is not counted."""
    rounds = [[await each() for each in turn] for _ in range(turns + 1)]
    return [statistics.median(values) for values in zip(*rounds[1:], strict=True)]


async def compare(folder: Path, genai: Path | None, tokens: int, turns: int, threads: int) -> None:
    ours = Ours(folder, threads)
    await ours.engine.check()
    theirs = Genai(genai) if genai else None

    async def report(name: str, own: Any, other: Callable[[], float]) -> float:
        async def another() -> float:
            return await asyncio.to_thread(other)

        found = await measured(turns, own, *([another] if theirs else []))
        beside = f"   genai {found[1]:8.1f}   ratio {found[0] / found[1]:.2f}" if theirs else ""
        print(f"{name:24} {found[0]:8.1f} a second{beside}")
        return found[0]

    def batch(length: int, calls: int, written: int, which: int) -> Callable[[], float]:
        ids = [3 + number % 500 for number in range(length)]
        return lambda: theirs.run(ids, calls, written)[which] if theirs else 0.0

    for length in PROMPTS:
        await report(
            f"prompt of {length} tokens",
            lambda length=length: ours.prompt_rate(length),
            batch(length, 1, 1, 0),
        )
    rates = {
        calls: await report(
            f"tokens, {calls} call(s)",
            lambda calls=calls: ours.decode_rate(calls, tokens),
            batch(PROMPTS[0], calls, tokens, 1),
        )
        for calls in (1, CALLS)
    }
    print(f"{CALLS} calls over 1 call: {rates[CALLS] / rates[1]:.2f}")
    await ours.engine.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("compiled", type=Path)
    parser.add_argument("--genai", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    asyncio.run(compare(asked.compiled, asked.genai, asked.tokens, asked.turns, asked.threads))


if __name__ == "__main__":
    main()
