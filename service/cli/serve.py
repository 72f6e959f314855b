"""`revelator serve`: the app on uvicorn, with the limits that uvicorn lacks.

They are for the bytes and the time of a request's head, and for the time of a body that nobody
waits for: a head that never ends would occupy a connection and memory indefinitely, and so would a
body that does not end after the request was refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import anyio
import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.api.access import check_exposure
from service.api.app import Opening, create_app
from service.api.edge import Edge
from service.checks import describe_roles, warm
from service.core.concurrency import running
from service.core.errors import ConfigurationError
from service.core.settings import ServerSettings, Settings
from service.prompts.templates import NO_ANSWER
from service.runtime import Runtime, open_runtime

if TYPE_CHECKING:
    from fastapi import FastAPI


MAX_HEAD_BYTES: Final = 65_536  # bytes of a request's first line and header fields together
MOST_JOINED: Final = 65_536  # bytes that one turn of the event loop may hold back
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


class JoinedWrites:
    """A transport that sends together what is written in one turn of the event loop: a head with
    its body, events that are ready together. Each system call costs as much as several events."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pieces: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._send)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MOST_JOINED:  # the transport itself tells writers to wait
            self._send()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if data and not self._transport.is_closing():
            self._transport.write(data)


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
        self.transport = JoinedWrites(transport, self.loop)  # type: ignore[assignment]
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


log = structlog.get_logger(__name__)

KEEP_ALIVE_S: Final = 5
STARTING_S: Final = 0.005  # seconds between two looks at a server that starts
FLUSH_S: Final = 5  # seconds for sending the last bytes to clients after the last question
BACKLOG: Final = 2048
COLLECTED: Final = (10_000, 10, 20)  # thresholds of the garbage collector's three generations


class Server(uvicorn.Server):
    """A uvicorn server with a draining phase between the first signal and the end of listening."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._edge: Edge = app.state

    async def main_loop(self) -> None:
        await super().main_loop()
        self._edge.drain.begin()
        drain_s = self._edge.settings.server.drain_s
        await self._edge.drain.finished(0 if self.force_exit else drain_s)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal without raising it again, so that the process can clean up and exit with
        0."""
        self.force_exit = self.should_exit
        self.should_exit = True
        if self.started:
            self._edge.drain.begin()
            if self.force_exit:
                self._edge.drain.expire()


def run_server(settings: Settings, on_started: Callable[[str], None]) -> None:
    """Serve until a signal. `on_started` gets the base URL once questions are accepted.

    Port 0 lets the system choose a port. Raises StoreError or ConfigurationError before anything is
    served, for example if the port is in use or the server would be exposed without keys.
    """
    check_exposure(settings.server)
    with bind(settings.server) as listener, asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(settings, listener, on_started))


async def serve(
    settings: Settings,
    listener: socket.socket,
    on_started: Callable[[str], None],
    opening: Opening | None = None,
) -> None:
    """Serve on a bound socket until a signal, as `run_server` does, in a running event loop."""
    url = base_url(listener)
    async with (opening or partial(open_runtime, settings))() as runtime:
        for line in describe_roles(settings, runtime.roles):
            log.info("configured", what=line.name, detail=line.detail)
        for path in runtime.roles.reader.templates.without_declining():
            log.warning(
                "template does not allow the model to decline",
                file=str(path),
                detail=f"add to it that the reply must be {NO_ANSWER!r} if no answer is found",
            )
        app = create_app(settings, lambda: contextlib.nullcontext(runtime))
        listener.listen(BACKLOG)
        _announce(runtime, url)
        on_started(url)
        async with anyio.create_task_group() as group:
            group.start_soon(_warm, runtime)
            await make_server(app).serve([listener])
            group.cancel_scope.cancel()
        _announce(runtime, None)


@contextlib.asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[tuple[Server, str]]:
    """Serve beside the body, which gets the server and its base URL; signals are left to the
    caller."""
    with bind(app.state.settings.server) as listener:
        server = make_server(app)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        async with running(server.serve([listener])) as task:
            while not (server.started or task.done()):  # noqa: ASYNC110 (uvicorn sets a flag)
                await asyncio.sleep(STARTING_S)
            try:
                yield server, base_url(listener)
            finally:
                server.should_exit = True
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([task])


def make_server(app: FastAPI) -> Server:
    """Return a server of `app` that drains as configured."""
    config = uvicorn.Config(
        app,
        lifespan="on",
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FLUSH_S,
    )
    return Server(config, app)


def bind(settings: ServerSettings) -> socket.socket:
    """Return a bound socket, which does not accept connections before the server listens on it.

    Raises ConfigurationError with host, port and reason.
    """
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; "
                "choose another host or port with --host or --port"
            ) from None
        stack.pop_all()
    return listener


def base_url(listener: socket.socket) -> str:
    """Return the URL of the listener for this machine. Wildcard hosts become loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # shown, not bound  # nosec B104
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(runtime: Runtime, url: str | None) -> None:
    """Write the URL to the lock of the data directory, where other processes find it."""
    runtime.retrieval.directory.set_url(url)


async def _warm(runtime: Runtime) -> None:
    """Load what the first question needs. What is unavailable is logged, and `/readyz` reports
    it."""
    for check in await warm(runtime):
        if not check.ok:
            log.warning("not ready", what=check.name, reason=check.detail)
    # Garbage collection delays the event loop less without the objects that live as long as the
    # process, and with higher thresholds it runs less often while a thousand streams are open.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED)
    # glibc would keep the memory that loading the models has freed.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    return uvicorn.Config("unused", log_config=None).get_loop_factory()
