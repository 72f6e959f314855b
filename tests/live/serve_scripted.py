"""Serve with a scripted engine in a process of its own; the tests of signals start it.

``python -m tests.live.serve_scripted '{"server": {"port": 0}}' --words 50 --delay 0.05`` prints the
URL once it serves, and `closed` after everything has been closed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from functools import partial

from service.cli.serve import bind, loop_factory, serve
from service.core.settings import Settings
from service.telemetry.logs import configure_logging
from tests.support.asking import ScriptedRetriever
from tests.support.retrieval import open_scripted
from tests.support.scripted import ScriptedGenerator, ScriptStep


def main() -> None:
    parser = argparse.ArgumentParser(description="the service on a scripted engine")
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("--words", type=int, default=50)
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--stores", action="store_true", help="embedded stores, not a fake")
    options = parser.parse_args()
    configure_logging("warning")
    words = [f"w{number} " for number in range(options.words)]
    engine = ScriptedGenerator([ScriptStep(reply=words, delay=options.delay, times=None)])
    settings = Settings.model_validate(options.settings)
    retriever = None if options.stores else ScriptedRetriever()
    opening = partial(open_scripted, settings, engines={"default": engine}, retriever=retriever)
    with bind(settings.server) as listener, asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(settings, listener, lambda url: print(url, flush=True), opening))
    print(f"closed, {engine.running} calls left", flush=True)


if __name__ == "__main__":
    main()
