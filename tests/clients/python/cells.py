"""What the scripts of the clients share: they take the names of cells on standard input, and print
what the client returned for each, a JSON object a line.

    python tests/clients/python/litellm_library.py '{"url": …, "question": …, "slow": …}'

The environment has the client, and nothing of this project.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pydantic import BaseModel

GIVEN = json.loads(sys.argv[1])
URL: str = GIVEN["url"]
BASE = f"{URL}/v1"
QUESTION: str = GIVEN["question"]
MESSAGES = [{"role": "user", "content": QUESTION}]
MODEL, KEY = "revelator", "none"
# A model may always decline to call it.
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
IN_TEXT = {"revelator": {"citations": "text"}}


class Answer(BaseModel):
    """The structure that is asked for."""

    name: str


Parts = Callable[[str], AsyncIterator[str]]
Cell = Callable[[], Awaitable[dict[str, Any]]]


def told(text: str | None, sources: list[str] | None = None) -> dict[str, Any]:
    return {"text": text or "", "sources": sources or []}


def run(parts: Parts, **cells: Cell) -> None:
    """Serve the cells until standard input ends. `parts` yields the text of each event of a stream,
    which may be empty; from it come `stream` and `stop`.
    """

    async def stream() -> dict[str, Any]:
        found = [part async for part in parts(QUESTION)]
        return told("".join(found)) | {"events": len(found)}

    async def stop() -> dict[str, Any]:
        """Leave when the next line says that the question is being answered."""
        reading = asyncio.ensure_future(_drain(parts(GIVEN["slow"])))
        await asyncio.to_thread(sys.stdin.readline)
        ended = reading.done()
        reading.cancel()
        await asyncio.wait([reading], timeout=10)
        return {"ended": ended or not reading.done()}

    asyncio.run(_serve(cells | {"stream": stream, "stop": stop}))


async def _drain(parts: AsyncIterator[str]) -> None:
    async for _ in parts:
        pass


async def _serve(cells: dict[str, Cell]) -> None:
    while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
        try:
            async with asyncio.timeout(GIVEN["timeout"]):
                found = await cells[name]()
        except Exception as error:
            first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            found = {"error": f"{type(first).__name__}: {str(first)[:2000]}"}
        print("\n" + json.dumps(found), flush=True)
