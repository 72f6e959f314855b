"""`revelator mcp`: the Model Context Protocol on standard input and output."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Final

import httpx2
import mcp_types as types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from service import __version__
from service.api.mcp.server import INSTRUCTIONS, NAME, Context
from service.api.mcp.tools import PATH
from service.cli.connect import open_server
from service.core.errors import InvalidRequest
from service.core.settings import Settings
from service.core.settings.urls import address_of, authorization, shown

CONNECT_S: Final = 30.0
SILENCE_S: Final = 300.0  # read timeout of an answer: the longest time limit of a question


async def serve_stdio(settings: Settings, url: str | None) -> None:
    """Serve until standard input ends.

    Everything is forwarded to the server at `url`, to the one that has locked the data directory,
    or to one in this process. Raises InvalidRequest if the server cannot be used.
    """
    timeout = httpx2.Timeout(CONNECT_S, read=SILENCE_S)
    async with AsyncExitStack() as stack:
        base, key = await stack.enter_async_context(open_server(settings, url))
        endpoint, headers = f"{address_of(base).url}{PATH}", authorization(base, key)
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
        transport = streamable_http_client(endpoint, http_client=http)
        try:
            client = await stack.enter_async_context(Client(transport, cache=None))
        except Exception as error:  # the SDK raises exceptions of any kind, and exception groups
            reason = await _refusal(http, endpoint) or _name(error)
            raise InvalidRequest(
                f"the server at {shown(base)} does not answer at {PATH}: {reason}; "
                "check its address, key (--key or REVELATOR_KEY), and that it has the extra `mcp`"
            ) from None
        server = forwarding(client)
        read, write = await stack.enter_async_context(stdio_server())
        await server.run(read, write, server.create_initialization_options())


async def _refusal(http: httpx2.AsyncClient, url: str) -> str | None:
    """Return why the server refuses every request, None if it does not say so."""
    try:
        detail: str = (await http.post(url, json={})).json()["detail"]
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        return None
    return detail.rstrip(".")


def _name(error: BaseException) -> str:
    """Return the name of an error, or of the first one of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__


def forwarding(client: Client) -> Server[Any]:
    """Return a server that forwards requests to another one through `client`, and reports its
    progress."""

    async def call_tool(
        context: Context, called: types.CallToolRequestParams
    ) -> types.CallToolResult:
        return await client.call_tool(
            called.name, called.arguments, progress_callback=context.session.report_progress
        )

    async def list_tools(_: Context, __: object) -> types.ListToolsResult:
        return await client.list_tools()

    async def list_resources(_: Context, __: object) -> types.ListResourcesResult:
        return await client.list_resources()

    async def read_resource(
        _: Context, wanted: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        return await client.read_resource(wanted.uri)

    return Server(
        NAME,
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )
