"""A server of HTTP that closes connections at moments of one's choice."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from types import TracebackType
from typing import Final

CHAT: Final = (
    b'{"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}],'
    b' "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
)


class ClosingServer:
    """Answers `answered` requests of a connection; the next one meets its end.

    That is what a call meets on a connection that was idle for the server's keep-alive time: the
    server has closed it, and the client, which has just sent its call, does not know yet. `last`
    is sent before the end, `reset` ends by RST. No reply is sent before `together` connections wait
    for their first, so that many are open.
    """

    def __init__(
        self,
        body: bytes = CHAT,
        *,
        answered: int = 1,
        last: bytes = b"",
        reset: bool = False,
        together: int = 1,
    ) -> None:
        self.url = ""
        self.requests = 0
        self.asked = asyncio.Event()
        self.connections = 0
        self._reply = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self._answered, self._last, self._reset = answered, last, reset
        self._serving: set[asyncio.Task[None]] = set()
        self._together = asyncio.Barrier(together)

    async def __aenter__(self) -> ClosingServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        try:
            await self._serve(reader, writer)
        except (asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()
            self._serving.discard(serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await self._requested(reader)
        if self.connections <= self._together.parties:
            await self._together.wait()
        for _ in range(self._answered):
            writer.write(self._reply)
            if not await self._requested(reader):
                break
        writer.write(self._last)
        await writer.drain()
        if self._reset:
            end = writer.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def _requested(self, reader: asyncio.StreamReader) -> bool:
        """Whether one more request came, whole."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        size = re.search(rb"content-length: *(\d+)", head.lower())
        await reader.readexactly(int(size[1]) if size else 0)
        self.requests += 1
        self.asked.set()
        return True
