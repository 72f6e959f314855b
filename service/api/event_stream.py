"""A response of Server-Sent Events that stays open while nothing happens.

FastAPI's own passes every event through two queues and three tasks, at more than the cost of
making the event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from service.api.bodies import EVENT_STREAM

PAUSE_S: Final = 15.0  # proxies close connections on which nothing is sent for longer


class EventStream(StreamingResponse):
    """Sends `events`, each encoded, as they come, and a comment after every `PAUSE_S` without
    one."""

    media_type = EVENT_STREAM

    def __init__(self, events: AsyncIterator[bytes], comment: str = "ping") -> None:
        # nginx would hold events back
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
