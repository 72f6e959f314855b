"""Asks questions over the shipped sample where torch, transformers and onnx are not installed.

    python -m tests.stubs.default_path DATA_DIR [MODEL]

prints, as JSON, the checks that failed, and of each question its route, loop and what was missing.
MODEL is a compiled folder; absent: the default engine.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio

from service.answer.request import parse_request
from service.retrieval.base import anyone
from tests.support.hiding import HIDDEN, IN_TESTS, hide_packages

ASKED: tuple[dict[str, Any], ...] = (
    {"route": "auto"},
    {"route": "single"},
    {"route": "single", "loop": "dragin"},
    {"route": "single", "loop": "efficientrag"},
)


async def ask_all(data_dir: str, model: str | None) -> dict[str, Any]:
    from service.answer.events import AnswerReady
    from service.checks import warm
    from service.core.concurrency import closing
    from service.core.settings import Settings
    from service.runtime import open_runtime

    engine = {"kind": "embedded", "model": model, "timeout_s": 200} if model else {}
    settings = Settings.model_validate(
        {"data_dir": data_dir, "engines": {"default": engine}, "routes": {"classifier": "shipped"}}
    )
    told = []
    async with open_runtime(settings) as runtime:
        failed = [check.detail for check in await warm(runtime) if not check.ok]
        for wanted in ASKED:
            fields = {"question": "Who directed Laserblast?", "timeout_s": 250, **wanted}
            request = await runtime.prepare(parse_request(fields), anyone)
            async with closing(runtime.ask(request)) as events:
                (body,) = [e.body async for e in events if isinstance(e, AnswerReady)]
            told.append([body.route, body.loop, body.degraded, body.usage.retrievals])
    return {"failed": failed, "told": told}


def main() -> None:
    hide_packages(*HIDDEN, *IN_TESTS)
    made = anyio.run(ask_all, sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
