"""The service, and beside it the yardsticks, in a process of its own for the HTTP benchmarks.

``python -m tests.benchmarks.bench_server [--engine URL]`` prints its URL. The engine is scripted
(`Task: closed` is answered by one time stamp every 50 ms), or an OpenAI-compatible server.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from fastapi import FastAPI
from pydantic import BaseModel

from service.api.app import create_app
from service.domain import Passage
from service.generation.base import Capabilities, Delta, GenerationRequest, Generator, TokenUsage
from service.generation.factory import open_generator
from service.generation.scripted import ScriptedGenerator, ScriptStep, render
from service.serving import base_url, bind, make_server
from service.settings import EngineSettings, Settings
from service.telemetry.logs import configure_logging
from tests.stubs.fake_retriever import FakeRetriever

PACE_S = 0.05
NO_OPS = 12  # engine calls of a `single` question: route, ten judgements, the answer
PASSAGES = [Passage(f"p{n}", f"T{n}", f"Passage {n} is about Norma.") for n in range(10)]


class Asked(BaseModel):
    question: str


class PacedGenerator:
    """Says the monotonic time of each token's release, one token every 50 ms, for ever."""

    name = "paced"
    capabilities = Capabilities()

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        tokens = 600 if "background" in render(request) else 40
        for _ in range(tokens):
            await asyncio.sleep(PACE_S)
            yield Delta(f"{time.monotonic():.6f} ")
        yield Delta("", finish="stop", usage=TokenUsage(1, tokens))

    async def check(self) -> None:
        return

    async def aclose(self) -> None:
        return


class BenchEngine:
    """Scripted for `single` questions, paced for `direct` ones."""

    name = "bench"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self._paced = PacedGenerator()
        self._scripted = ScriptedGenerator(_script())

    def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        engine: Generator = self._paced if "Task: closed" in render(request) else self._scripted
        return engine.stream(request)

    async def check(self) -> None:
        return

    async def aclose(self) -> None:
        return


def _script() -> Sequence[ScriptStep]:
    return [
        ScriptStep(match="Task: route", reply=["single-step question"], times=None),
        ScriptStep(match="Task: relevance", reply=["true"], times=None),
        ScriptStep(match="Task: answer", reply="Vincenzo Bellini", times=None),
    ]


async def no_op() -> None:
    return


async def bare(asked: Asked) -> dict[str, str]:
    """The yardstick: a FastAPI endpoint and twelve awaits that do nothing."""
    for _ in range(NO_OPS):
        await no_op()
    return {"answer": asked.question}


async def main() -> None:
    parser = argparse.ArgumentParser(description="the server of the HTTP benchmarks")
    parser.add_argument("--engine", help="base URL of an OpenAI-compatible server")
    options = parser.parse_args()
    configure_logging("warning")
    settings = Settings.model_validate({"server": {"port": 0, "drain_s": 0}})
    engine: Generator = BenchEngine()
    if options.engine:
        openai = EngineSettings(kind="openai", urls=[options.engine], model="stub-model")
        engine = open_generator("default", openai)
    app: FastAPI = create_app(
        settings, engines={"default": engine}, retriever=FakeRetriever({"sample": PASSAGES})
    )
    app.post("/bare")(bare)
    listener = bind(settings.server)
    server = make_server(app, settings.server)
    server.on_started = lambda: print(base_url(listener), flush=True)
    await server.serve([listener])
    await engine.aclose()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
