"""`revelator mcp`: the Model Context Protocol on standard input and output."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
from fastapi import FastAPI, Request
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from starlette.types import Message

from service import __version__
from service.api.app import create_app
from service.api.mcp.server import INSTRUCTIONS, NAME, Context, make_server
from service.api.mcp.tools import PATH
from service.api.tenants import OWNER
from service.core.errors import InvalidRequest
from service.core.locks import find_server
from service.core.settings import Settings
from service.core.settings.urls import address_of, authorization, shown
from service.runtime import new_id

CONNECT_S: Final = 30.0
SILENCE_S: Final = 300.0  # read timeout of an answer: the longest time limit of a question


async def serve_stdio(settings: Settings, url: str | None) -> None:
    """Serve until standard input ends.

    Questions are answered by the server at `url`, by the one that has locked the data directory, or
    in this process. Raises InvalidRequest if the server cannot be used.
    """
    base = find_server(settings.data_dir, url)
    if base is None:
        await serve_here(settings)
    else:
        await serve_through(base, settings)


async def serve_here(settings: Settings) -> None:
    """Answer in this process with its own app. The caller who started it has all rights."""
    local = settings.server.model_copy(update={"host": "127.0.0.1"})
    app = create_app(settings.model_copy(update={"server": local}))
    async with app.router.lifespan_context(app):
        await _serve(make_server(lambda _: _request(app)))


async def serve_through(base: str, settings: Settings) -> None:
    """Forward everything to the server at `base`, with the settings' own key."""
    headers = authorization(base, settings.own_key)
    timeout = httpx2.Timeout(CONNECT_S, read=SILENCE_S)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
        transport = streamable_http_client(f"{address_of(base).url}{PATH}", http_client=http)
        try:
            client = await stack.enter_async_context(Client(transport, cache=None))
        except Exception as error:  # the SDK raises exceptions of any kind, and exception groups
            reason = await _refusal(http, f"{address_of(base).url}{PATH}") or _name(error)
            raise InvalidRequest(
                f"the server at {shown(base)} does not answer at {PATH}: {reason}; "
                "check its address, key (--key or REVELATOR_KEY), and that it has the extra `mcp`"
            ) from None
        await _serve(forwarding(client))


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


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _request(app: FastAPI) -> Request:
    """Return a request in the name of the caller who started this process."""
    state = {
        "tenant": OWNER, "request_id": new_id(),
        "own_id": True,
    }  # fmt: skip
    scope = {
        "type": "http", "method": "POST", "path": PATH, "headers": [], "query_string": b"",
        "app": app, "state": state,
    }  # fmt: skip
    return Request(scope, _never)


async def _never() -> Message:
    """Wait forever, since this caller disconnects by ending the process."""
    await anyio.sleep_forever()
    raise AssertionError
