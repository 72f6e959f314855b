"""The service in a process of its own, on an engine that takes a stated time.

    python -m tests.load.server --running 16 --seconds 0.4 [--tokens 4] [--tenants FILE]
        [--port N] [--drain SECONDS] [--data FOLDER [--elasticsearch URL --qdrant URL]]

prints its URL and serves until it is terminated. Without a data directory, a stub retrieves.
`--die-at N`: after SIGUSR1 it kills itself at its n-th durable operation.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from service.api import wire as bodies
from service.cli import serve as connections
from service.cli import serve as serving
from service.cli.serve import bind, loop_factory, serve
from service.core.settings import Settings
from service.engines.base import Capabilities, Delta, GenerationRequest, Generator, TokenUsage
from service.telemetry.logs import configure_logging
from tests.benchmarks.bench_server import StubRetriever
from tests.support.retrieval import open_scripted

LIMITS = ((connections, "HEAD_S"), (bodies, "BODY_TIMEOUT_S"), (serving, "KEEP_ALIVE_S"))
HOW_MANY = "How many tasks are there?"


class TimedGenerator(Generator):
    """Answers any call in so many tokens, evenly over so many seconds, however many run; and
    `HOW_MANY` by the number of asyncio's tasks."""

    name = "timed"
    capabilities = Capabilities()

    def __init__(self, seconds: float, tokens: int) -> None:
        self._pause, self._tokens = seconds / tokens, tokens

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        if any(HOW_MANY in message.content for message in request.messages):
            yield Delta(str(len(asyncio.all_tasks())), finish="stop", usage=TokenUsage(1, 1))
            return
        for _ in range(self._tokens):
            await asyncio.sleep(self._pause)
            yield Delta("Bellini ")
        yield Delta("", finish="stop", usage=TokenUsage(1, self._tokens))

    async def check(self) -> None:
        return

    async def aclose(self) -> None:
        return


def settings_of(given: argparse.Namespace) -> Settings:
    sections: dict[str, Any] = {
        "server": {
            "port": given.port,
            "drain_s": given.drain,
            "max_running": given.running,
            "tenants_file": given.tenants,
        }
    }
    if given.data:
        sections |= {
            "data_dir": given.data,
            "retrieval": {
                "embedding_model": "hashing",
                "elasticsearch_url": given.elasticsearch,
                "qdrant_url": given.qdrant,
            },
        }
    return Settings.model_validate(sections)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--running", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--tenants", type=Path)
    parser.add_argument("--limits", type=float, help="seconds of a head, a body and a pause")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--drain", type=float, default=1.0)
    parser.add_argument("--elasticsearch")
    parser.add_argument("--qdrant")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--die-at", type=int)
    given = parser.parse_args()
    if given.limits is not None:
        for module, name in LIMITS:
            setattr(module, name, given.limits)
    if given.die_at is not None:
        from tests.faults import killing

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, killing.die_at, given.die_at)
    configure_logging("error")
    settings = settings_of(given)
    engines = {"default": TimedGenerator(given.seconds, given.tokens)}
    retriever = None if given.data else StubRetriever()

    def started(url: str) -> None:
        print(url, flush=True)

    with bind(settings.server) as listener:
        opening = partial(open_scripted, settings, engines=engines, retriever=retriever)
        await serve(settings, listener, started, opening)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:  # as `revelator serve`
        runner.run(main())
