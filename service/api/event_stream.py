"""A response of Server-Sent Events that stays open during pauses.

FastAPI's own passes every event through two queues and three tasks, which costs more than creating
the event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import orjson
from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from service.api.bodies import EVENT_STREAM
from service.core.concurrency import running
from service.core.errors import RevelatorError
from service.core.progress import Follow
from service.strategies.pipeline import problem_of

TOLD_S: Final = 0.25  # seconds between two events that report the progress of long work
PAUSE_S: Final = 15.0  # seconds; proxies close connections without data after longer pauses
# Some clients end a line at these, too, and with it the field.
LINE_BREAKS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


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
    now, sent = dict[str, str | int](), dict[str, str | int]()

    def follow(stage: str, done: int, total: int) -> None:
        now.update(stage=stage, done=done, total=total)

    async def report() -> BaseModel:
        return await work(follow)

    try:
        async with running(report()) as task:
            while not task.done():
                if now != sent:
                    sent = dict(now)
                    yield framed("progress", orjson.dumps(sent).decode())
                await asyncio.wait([task], timeout=TOLD_S)
            yield framed("report", task.result().model_dump_json())
    except RevelatorError as error:
        yield framed("error", problem_of(error, request_id).model_dump_json())


def framed(event: str, data: str, place: str | None = None) -> bytes:
    """Encode an event of JSON `data`, with `place` as its `id`."""
    if not data.isascii():
        data = data.translate(LINE_BREAKS)
    end = "" if place is None else f"id: {place}\n"
    return f"event: {event}\ndata: {data}\n{end}\n".encode()
