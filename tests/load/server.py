"""The service in a process of its own, on an engine that takes a stated time.

    python -m tests.load.server '{"server": {"port": 0}}' [--seconds 0.4] [--tokens 4]

prints its URL, serves until it is terminated, and prints how many calls are left then. `--engine`:
the URL of an OpenAI-compatible server, instead. Without a data directory in the settings, a stub
retrieves. `--die-at N`: after SIGUSR1 it kills itself at its n-th durable operation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import AsyncIterator
from functools import partial

from service.api import wire as bodies
from service.cli import serve
from service.core.domain import Passage, ScoredPassage
from service.core.settings import EngineSettings, Settings
from service.engines.base import Capabilities, Delta, GenerationRequest, Generator, TokenUsage
from service.engines.factory import open_generator
from service.retrieval.base import SearchRequest, SearchResult
from service.telemetry.logs import configure_logging
from tests.support.retrieval import open_scripted

LIMITS = ((serve, "HEAD_S"), (bodies, "BODY_TIMEOUT_S"), (serve, "KEEP_ALIVE_S"))
HOW_MANY = "How many tasks are there?"


class TimedGenerator(Generator):
    """Answers any call in so many tokens, evenly over so many seconds, however many run; and
    `HOW_MANY` by the number of asyncio's tasks."""

    name = "timed"
    capabilities = Capabilities()

    def __init__(self, seconds: float, tokens: int) -> None:
        self._pause, self._tokens = seconds / tokens, tokens
        self.running = 0

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        if any(HOW_MANY in message.content for message in request.messages):
            yield Delta(str(len(asyncio.all_tasks())), finish="stop", usage=TokenUsage(1, 1))
            return
        self.running += 1
        try:
            for _ in range(self._tokens):
                await asyncio.sleep(self._pause)
                yield Delta("Bellini ")
        finally:
            self.running -= 1
        yield Delta("", finish="stop", usage=TokenUsage(1, self._tokens))

    async def check(self) -> None:
        return

    async def aclose(self) -> None:
        return


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--engine", help="base URL of an OpenAI-compatible server")
    parser.add_argument("--limits", type=float, help="seconds of a head, a body and a pause")
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--log-level", default="error")
    given = parser.parse_args()
    for module, name in LIMITS if given.limits is not None else ():
        setattr(module, name, given.limits)
    if given.die_at is not None:
        from tests.faults import killing

        signal.signal(signal.SIGUSR1, lambda *_: killing.die_at(given.die_at))
    configure_logging(given.log_level)
    settings = Settings.model_validate(given.settings)
    timed = TimedGenerator(given.seconds, given.tokens)
    engine: Generator = timed
    if given.engine:
        openai = EngineSettings(kind="openai", urls=[given.engine], model="stub-model")
        engine = open_generator("default", openai)
    retriever = None if "data_dir" in given.settings else StubRetriever()
    opening = partial(open_scripted, settings, engines={"default": engine}, retriever=retriever)
    with (
        serve.bind(settings.server) as listener,
        asyncio.Runner(loop_factory=serve.loop_factory()) as runner,
    ):
        runner.run(serve.serve(settings, listener, partial(print, flush=True), opening))
    print(f"closed, {timed.running} calls left", flush=True)


if __name__ == "__main__":
    main()
