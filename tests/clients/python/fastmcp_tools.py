"""FastMCP's client of the tools at /mcp; a stream is the notices of progress, then the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from cells import QUESTION, URL, run, told
from fastmcp import Client


async def call(question: str = QUESTION, **options: Any) -> Any:
    async with Client(f"{URL}/mcp") as client:
        return await client.call_tool("answer", {"question": question}, **options)


async def parts(question: str) -> AsyncIterator[str]:
    notices: asyncio.Queue[str | None] = asyncio.Queue()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        notices.put_nowait("")

    asking = asyncio.create_task(call(question, progress_handler=progress))
    asking.add_done_callback(lambda _: notices.put_nowait(None))
    try:
        while (notice := await notices.get()) is not None:
            yield notice
        yield (await asking).structured_content["answer"]
    finally:
        asking.cancel()
        await asyncio.wait([asking], timeout=10)


async def ask(listing: bool) -> dict[str, Any]:
    if listing:
        async with Client(f"{URL}/mcp") as client:
            return told(" ".join(tool.name for tool in await client.list_tools()))
    found = await call()
    return told(found.content[0].text, [c["title"] for c in found.structured_content["citations"]])


async def structured() -> dict[str, Any]:
    return {"object": {"answer": (await call()).structured_content["answer"]}}


run(parts, ask, structured)
