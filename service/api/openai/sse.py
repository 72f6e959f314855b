"""Server-Sent Events as OpenAI's API sends them: data alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, TypeVar

import orjson

T = TypeVar("T")
PAUSE: Final = b": the question is being answered\n\n"
PAUSE_S: Final = 15.0


def data(value: Mapping[str, Any]) -> bytes:
    """One event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


async def with_pauses(items: AsyncIterator[T], seconds: float = PAUSE_S) -> AsyncIterator[T | None]:
    """Yield the items, and None whenever there was none for so long: proxies close connections on
    which nothing is sent."""
    while True:
        waiting = asyncio.ensure_future(anext(items))
        try:
            while not (await asyncio.wait([waiting], timeout=seconds))[0]:
                yield None
        finally:
            if not waiting.done():
                waiting.cancel()
        try:
            item = waiting.result()
        except StopAsyncIteration:
            return
        yield item
