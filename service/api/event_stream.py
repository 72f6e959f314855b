"""A response of Server-Sent Events that stays open during pauses.

FastAPI's own passes every event through two queues and three tasks, which costs more than creating
the event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import anyio
import orjson
from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from service.api.bodies import EVENT_STREAM
from service.core.errors import RevelatorError
from service.core.progress import Follow
from service.strategies.pipeline import problem_of

TOLD_S: Final = 0.25  # seconds between two events that report the progress of long work
PAUSE_S: Final = 15.0  # seconds; proxies close connections without data after longer pauses


class EventStream(StreamingResponse):
    """Sends `events`, each encoded, as they arrive, and a comment after every `PAUSE_S` without
    one.
    """

    media_type = EVENT_STREAM

    def __init__(self, events: AsyncIterator[bytes], comment: str = "ping") -> None:
        # nginx would buffer events
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._comment = f": {comment}\n\n".encode()
        self._sent_at = 0.0

    async def stream_response(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time

        async def noted(message: Message) -> None:
            self._sent_at = clock()
            await send(message)

        self._sent_at = clock()
        pausing = asyncio.create_task(self._fill_pauses(noted))
        try:
            await super().stream_response(noted)
        finally:
            pausing.cancel()

    async def _fill_pauses(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            left = self._sent_at + PAUSE_S - clock()
            if left > 0:
                await asyncio.sleep(left)
            else:
                body = {"type": "http.response.body", "body": self._comment, "more_body": True}
                await send(body)


async def followed(
    work: Callable[[Follow], Awaitable[BaseModel]], request_id: str
) -> AsyncIterator[bytes]:
    """Run long work and yield its progress as events `progress`, then its result as `report`, or
    `error`. Closing the iterator cancels the work."""
    now: dict[str, str | int] = {}

    def follow(stage: str, done: int, total: int) -> None:
        now.update(stage=stage, done=done, total=total)

    task, told = asyncio.ensure_future(work(follow)), dict[str, str | int]()
    try:
        while not task.done():
            if now != told:
                told = dict(now)
                yield _encoded("progress", orjson.dumps(told))
            await asyncio.wait([task], timeout=TOLD_S)
        yield _encoded("report", task.result().model_dump_json().encode())
    except RevelatorError as error:
        yield _encoded("error", problem_of(error, request_id).model_dump_json().encode())
    finally:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])


def _encoded(event: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), data)
