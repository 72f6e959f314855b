"""`/mcp`: streamable HTTP. Requests are stateless, so any process can answer them.

The SDK is imported, and its server started, by the first request.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from fastapi import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from service.api.bodies import MAX_BODY_BYTES, read_body
from service.api.security import authenticate, own_host
from service.core.errors import NotFound

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH: Final = "/mcp"
LACKING: Final = (
    "the Model Context Protocol needs the extra `mcp`: pip install '.[mcp]' in the checkout, "
    "then start again"
)


def installed() -> bool:
    """Whether the SDK is installed."""
    return find_spec("mcp") is not None


class McpEndpoint:
    """An ASGI app for one path. Errors before the protocol begins are problems, as on all paths."""

    def __init__(self) -> None:
        self._starting = anyio.Lock()
        self._manager: StreamableHTTPSessionManager | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await own_host(request)
        await authenticate(request)
        if not installed():
            raise NotFound(LACKING)
        if request.method != "POST":  # between requests there is nothing to listen to
            await Response(status_code=405, headers={"Allow": "POST"})(scope, receive, send)
            return
        body = await read_body(request)
        manager = await self._started(request.app.state)
        await manager.handle_request(scope, _again(body, receive), send)

    async def _started(self, state: Any) -> StreamableHTTPSessionManager:
        async with self._starting:
            if self._manager is None:
                manager = await anyio.to_thread.run_sync(_make_manager)
                running = anyio.Event()
                state.tasks.spawn("mcp", self._run(manager, running))
                await running.wait()
                return manager
            return self._manager

    async def _run(self, manager: StreamableHTTPSessionManager, running: anyio.Event) -> None:
        """Serve until the app ends, or until a request fails badly: the next one creates a new
        manager."""
        try:
            async with manager.run():
                self._manager = manager
                running.set()
                await anyio.sleep_forever()
        finally:
            self._manager = None
            running.set()


def mcp_route() -> Route:
    return Route(PATH, McpEndpoint(), include_in_schema=False)


def _make_manager() -> StreamableHTTPSessionManager:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415

    from service.api.mcp.server import make_server  # noqa: PLC0415

    server = make_server(lambda context: cast(Request, context.request))
    return StreamableHTTPSessionManager(
        server, stateless=True, max_request_body_size=MAX_BODY_BYTES
    )


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that repeats the body that was read, and then continues."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return left.pop() if left else await receive()

    return received
