"""The service in a process of its own, for programs that measure it over HTTP.

``python -m tests.benchmarks.bench_server [--engine URL]`` prints its URL. The engine is
scripted, or an OpenAI-compatible server.
"""

from __future__ import annotations

import argparse
from functools import partial

from fastapi import FastAPI

from service.api.app import create_app
from service.cli.serve import base_url, bind, make_server
from service.core.domain import Passage, ScoredPassage
from service.core.settings import EngineSettings, Settings
from service.engines.base import Generator
from service.engines.factory import open_generator
from service.retrieval.base import SearchRequest, SearchResult
from service.telemetry.logs import configure_logging
from tests.support.retrieval import open_scripted
from tests.support.scripted import ScriptedGenerator, ScriptStep


class StubRetriever:
    """Ten passages for any query, at once."""

    def __init__(self) -> None:
        hits = [
            ScoredPassage(Passage(f"p{n}", f"T{n}", f"Passage {n} is about Norma."), n, 1 / n)
            for n in range(1, 11)
        ]
        self._result = SearchResult(tuple(hits))

    async def search(self, request: SearchRequest) -> SearchResult:
        return self._result


def scripted() -> ScriptedGenerator:
    """A `single` question: route, ten judgements, the answer. The most frequent call first."""
    return ScriptedGenerator(
        [
            ScriptStep(match="Task: relevance", reply=["true"], times=None),
            ScriptStep(match="Task: route", reply=["single-step question"], times=None),
            ScriptStep(match="Task: answer", reply="Vincenzo Bellini", times=None),
        ]
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description="the service for programs that measure it")
    parser.add_argument("--engine", help="base URL of an OpenAI-compatible server")
    options = parser.parse_args()
    configure_logging("warning")
    settings = Settings.model_validate({"server": {"port": 0, "drain_s": 0}})
    engine: Generator = scripted()
    if options.engine:
        openai = EngineSettings(kind="openai", urls=[options.engine], model="stub-model")
        engine = open_generator("default", openai)
    app: FastAPI = create_app(
        settings,
        partial(open_scripted, settings, engines={"default": engine}, retriever=StubRetriever()),
    )
    listener = bind(settings.server)
    listener.listen()
    print(base_url(listener), flush=True)
    await make_server(app).serve([listener])
    await engine.aclose()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
