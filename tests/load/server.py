"""The service in a process of its own, on an engine that takes a stated time.

    python -m tests.load.server --running 16 --seconds 0.4 [--tokens 4] [--tenants FILE]

prints its URL and serves until it is terminated.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from service.api.app import create_app
from service.cli.serve import base_url, bind, make_server
from service.core.settings import Settings
from service.engines.base import Capabilities, Delta, GenerationRequest, TokenUsage
from service.telemetry.logs import configure_logging
from tests.benchmarks.bench_server import StubRetriever


class TimedGenerator:
    """Answers any call in so many tokens, evenly over so many seconds, however many run."""

    name = "timed"
    capabilities = Capabilities()

    def __init__(self, seconds: float, tokens: int) -> None:
        self._pause, self._tokens = seconds / tokens, tokens

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        for _ in range(self._tokens):
            await asyncio.sleep(self._pause)
            yield Delta("Bellini ")
        yield Delta("", finish="stop", usage=TokenUsage(1, self._tokens))

    async def check(self) -> None:
        return

    async def aclose(self) -> None:
        return


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--running", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--tenants", type=Path)
    given = parser.parse_args()
    configure_logging("error")
    server = {
        "port": 0, "drain_s": 1, "max_running": given.running, "tenants_file": given.tenants,
    }  # fmt: skip
    settings = Settings.model_validate({"server": server})
    engines = {"default": TimedGenerator(given.seconds, given.tokens)}
    app = create_app(settings, engines=engines, retriever=StubRetriever())
    listener = bind(settings.server)
    running = make_server(app, settings.server)
    async with asyncio.TaskGroup() as group:
        group.create_task(running.serve([listener]))
        while not running.started:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(0.01)
        print(base_url(listener), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
