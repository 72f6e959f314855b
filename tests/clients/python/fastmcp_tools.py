"""FastMCP's client of the tools at /mcp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from cells import QUESTION, URL, run, told
from fastmcp import Client


async def ask(question: str = QUESTION, **options: Any) -> Any:
    async with Client(f"{URL}/mcp") as client:
        return await client.call_tool("answer", {"question": question}, **options)


async def parts(question: str) -> AsyncIterator[str]:
    """Each notice of progress, then the answer."""
    notices: asyncio.Queue[str | None] = asyncio.Queue()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        notices.put_nowait("")

    asking = asyncio.create_task(ask(question, progress_handler=progress))
    asking.add_done_callback(lambda _: notices.put_nowait(None))
    try:
        while (notice := await notices.get()) is not None:
            yield notice
        yield (await asking).structured_content["answer"]
    finally:
        asking.cancel()
        await asyncio.wait([asking], timeout=10)


async def chat() -> dict[str, Any]:
    return told((await ask()).content[0].text)


async def tools() -> dict[str, Any]:
    async with Client(f"{URL}/mcp") as client:
        return told(" ".join(tool.name for tool in await client.list_tools()))


async def structured() -> dict[str, Any]:
    return {"object": {"name": (await ask()).structured_content["answer"]}}


async def citations() -> dict[str, Any]:
    found = (await ask()).structured_content
    return told(found["answer"], [each["title"] for each in found["citations"]])


run(parts, chat=chat, tools=tools, structured=structured, citations=citations)
