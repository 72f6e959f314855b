"""What the scripts of the clients share: they take the names of cells on standard input, and print
what the client returned for each, a JSON object a line. Nothing of this project is beside them."""

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
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}


class Answer(BaseModel):
    """The structure that is asked for."""

    answer: str


def weather(city: str) -> str:
    """The weather in a city: a tool that a model may decline to call."""
    raise AssertionError(city)


Found = Awaitable[dict[str, Any]]


def told(text: str | None, sources: list[str] | None = None) -> dict[str, Any]:
    return {"text": text or "", "sources": sources or []}


def run(
    parts: Callable[[str], AsyncIterator[str]],
    ask: Callable[[bool], Found],
    structured: Callable[[], Found],
    cited: Callable[[], Found] | None = None,
) -> None:
    """Serve the cells until standard input ends. `parts`: the text, which may be empty, of each
    event of a stream. `ask`: the answer, with a tool offered or not. `cited`: it with its sources,
    where these are not in `ask`."""

    async def stream() -> dict[str, Any]:
        found = [part async for part in parts(QUESTION)]
        return told("".join(found)) | {"events": len(found)}

    async def stop() -> dict[str, Any]:
        """Leave when the next line says that the question is being answered."""
        reading = asyncio.ensure_future(_drain(parts(GIVEN["slow"])))
        await asyncio.to_thread(sys.stdin.readline)
        if reading.done():
            await reading  # raises what ended it
            return {"wrong": "the question ended before it was stopped"}
        for _ in range(30):
            # Python 3.11's `asyncio.wait_for`, which langchain-openai reads chunks with, loses a
            # cancellation that comes together with a chunk.
            reading.cancel()
            await asyncio.wait([reading], timeout=1)
            if reading.done():
                return {"wrong": None}
        return {"wrong": "the client did not stop in 30 s"}

    cells: dict[str, Callable[[], Found]] = {
        "chat": lambda: ask(False), "stream": stream, "tools": lambda: ask(True),
        "structured": structured, "citations": cited or (lambda: ask(False)), "stop": stop,
    }  # fmt: skip
    asyncio.run(_serve(cells))


async def _drain(parts: AsyncIterator[str]) -> None:
    async for _ in parts:
        pass


async def _serve(cells: dict[str, Callable[[], Found]]) -> None:
    while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
        try:
            async with asyncio.timeout(GIVEN["timeout"]):
                found = await cells[name]()
        except Exception as error:
            first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            found = {"error": f"{type(first).__name__}: {str(first)[:2000]}"}
        print("\n" + json.dumps(found), flush=True)


def of_openai(client: Any, **fields: Any) -> tuple[Any, Any]:
    """`parts` and `ask` by OpenAI's client, or what has its form."""

    async def create(question: str, **more: Any) -> Any:
        messages = [{"role": "user", "content": question}]
        return await client.chat.completions.create(
            model=MODEL, messages=messages, **fields, **more
        )

    async def parts(question: str) -> AsyncIterator[str]:
        async with await create(question, stream=True) as stream:
            async for chunk in stream:
                yield (chunk.choices[0].delta.content or "") if chunk.choices else ""

    async def ask(offering: bool) -> dict[str, Any]:
        found = await create(QUESTION, **({"tools": [TOOL]} if offering else {}))
        message = found.choices[0].message
        return told(message.content, [each.url_citation.url for each in message.annotations or []])

    return parts, ask
