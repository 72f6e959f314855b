"""Limits for the bytes and the time of a request's head, and for the time of a body that nobody
waits for.

uvicorn has none of them: a head that never ends would occupy a connection and memory indefinitely,
and so would a body that does not end after the request was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

MAX_HEAD_BYTES: Final = 65_536  # bytes of a request's first line and header fields together
MOST_WAITING: Final = 8  # pipelined requests before reading stops
# seconds from a connection's beginning, or a head's first byte, to the head's end
HEAD_S: Final = 10.0
# Seconds from a response to the end of its request's body. Closing at once could destroy the
# response before a client that is still sending has read it.
REST_S: Final = 30.0


def _unchunked(cycle: RequestResponseCycle) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Return a `send` for clients that know no chunks: the end of a body without a length is that
    of the connection."""
    send, bounded = cycle.send, True

    async def sent(message: Any) -> None:
        nonlocal bounded
        if message["type"] == "http.response.start":
            bounded = any(name.lower() == b"content-length" for name, _ in message["headers"])
            if not bounded:
                cycle.chunked_encoding, cycle.keep_alive = False, False
        elif not bounded:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return sent


class Connection(HttpToolsProtocol):
    """A connection that gets 431 for a head that is too large, and 408 for one that is too late.

    A connection that has sent nothing is closed without a response. So is one whose request was
    answered before its body was complete, if the rest does not arrive in time.
    """

    _heading = True  # whether the next bytes belong to a head
    _received = 0  # bytes of the head, except for those that came with the previous request
    _begun = False
    _oversized = False
    _timer: asyncio.TimerHandle | None = None
    _answered: RequestResponseCycle | None = None  # the newest request, `cycle`, may wait for it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_S, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        if self._answered is not None:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._heading:
            self._received += len(data)
        super().data_received(data)
        if self.transport.is_closing() or not (self._heading and (self._begun or self._received)):
            return
        if self._received > MAX_HEAD_BYTES:
            self._refuse(431)
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self._late)

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self._begun = True

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._heading, self._begun, self._received = False, False, 0
        fields = sum(len(name) + len(value) for name, value in self.headers)
        if len(self.url) + fields > MAX_HEAD_BYTES:
            self._oversized = True
            raise ValueError  # ends the parsing; `send_400_response` follows
        super().on_headers_complete()
        if self._responding and len(self.pipeline) <= MOST_WAITING:
            self.flow.resume_reading()  # otherwise a disconnect of the client would not be noticed

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        if cycle.scope["http_version"] == "1.0":
            cycle.send = _unchunked(cycle)  # type: ignore[method-assign,assignment]
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._heading = True
        self._stop_timer()
        if not self._responding:  # uvicorn's timer was stopped when the rest of the body arrived
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not (self._heading or self._responding or self.transport.is_closing()):
            self._stop_timer()
            self._timer = self.loop.call_later(REST_S, self._late)

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid head. uvicorn's own response would be taken for one that is still being
        sent.
        """
        if self._oversized or self._responding:
            self._refuse(431)
        else:
            super().send_400_response(msg)

    def _late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._responding:
            self._timer = self.loop.call_later(HEAD_S, self._late)
        elif self._begun or self._received:
            self._refuse(408)
        else:
            self.transport.close()

    def _refuse(self, status: int) -> None:
        """Refuse the head and close the connection. While a response is still being sent, only
        close.
        """
        if not self._responding:
            end = b"content-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + end)
        self.transport.close()

    @property
    def _responding(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
