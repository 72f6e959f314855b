"""The server of the official SDK, with handlers that act for the request of each call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import mcp_types as types
from fastapi import Request
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from service import __version__
from service.api.access import tenant_of
from service.api.mcp.tools import ToolSpec, tools_of
from service.api.wire import answer_unexpected, disclosed
from service.core.domain import Problem
from service.core.errors import NotFound, RevelatorError
from service.runtime import Runtime

NAME: Final = "revelator"
SCHEME: Final = "revelator://collections/"
INSTRUCTIONS: Final = (
    "Answers questions from collections of passages, with citations. Use `answer` for questions, "
    "and `search` to read passages. The resources are the collections."
)
Context = ServerRequestContext[Any, Any]


def make_server() -> Server[Any]:
    """Create the server. A call acts for the request that brought it: its app and its tenant."""

    async def list_tools(
        context: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        tools = tools_of(_request(context)).values()
        return types.ListToolsResult(tools=[_described(tool) for tool in tools])

    async def list_resources(
        context: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        request = _request(context)
        async with _refusals(request):
            return types.ListResourcesResult(resources=await _resources(request))

    async def read_resource(
        context: Context, wanted: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        request = _request(context)
        async with _refusals(request):
            return await _read(request, str(wanted.uri))

    return Server(
        NAME,
        version=__version__,
        title="Revelator",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=_called,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def _described(tool: ToolSpec) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.schema,
        output_schema=tool.result.model_json_schema(mode="serialization"),
        annotations=types.ToolAnnotations(
            read_only_hint=tool.right == "ask", destructive_hint=False, open_world_hint=False
        ),
    )


def _request(context: Context) -> Request:
    return cast(Request, context.request)


async def _called(context: Context, called: types.CallToolRequestParams) -> types.CallToolResult:
    """Return the result of a tool, or an error that the calling model can read."""
    request = _request(context)
    tool = tools_of(request).get(called.name)
    if tool is None:
        raise MCPError(
            types.INVALID_PARAMS, f"There is no tool {called.name[:80]!r} that this key may use."
        )
    steps = 0

    async def report(line: str) -> None:
        nonlocal steps
        steps += 1
        await context.session.report_progress(steps, message=line)

    try:
        text, value = await tool.call(request, called.arguments or {}, report)
    except RevelatorError as error:
        return _failed(disclosed(error, request).detail)
    except Exception as error:
        return _failed(await _unexpected(request, error))
    return types.CallToolResult(
        content=[_text(text)], structured_content=value.model_dump(mode="json")
    )


def _text(text: str) -> types.TextContent:
    return types.TextContent(text=text)


def _failed(detail: str) -> types.CallToolResult:
    return types.CallToolResult(content=[_text(detail)], is_error=True)


async def _unexpected(request: Request, error: Exception) -> str:
    """Log the error, and return what a client of any other path is told instead of it."""
    response = await answer_unexpected(request, error)
    return Problem.model_validate_json(bytes(response.body)).detail


@asynccontextmanager
async def _refusals(request: Request) -> AsyncIterator[None]:
    """Turn errors into those of the protocol, with the texts of all other paths."""
    try:
        yield
    except RevelatorError as error:
        raise MCPError(types.INVALID_PARAMS, disclosed(error, request).detail) from None
    except Exception as error:
        raise MCPError(types.INTERNAL_ERROR, await _unexpected(request, error)) from None


async def _resources(request: Request) -> list[types.Resource]:
    """Return the collections that the key may use."""
    runtime: Runtime = request.app.state.runtime
    tenant = tenant_of(request)
    tenant.check("ask")
    if runtime.stores is None:
        return []
    return [
        types.Resource(
            uri=SCHEME + quote(manifest.name, safe=""),
            name=manifest.name,
            description=manifest.description or None,
            mime_type="application/json",
        )
        for manifest in await runtime.stores.collections.manifests()
        if tenant.may_use(manifest.name)
    ]


async def _read(request: Request, uri: str) -> types.ReadResourceResult:
    """Return a collection with its counts, as `GET /collections/{name}` does."""
    runtime: Runtime = request.app.state.runtime
    tenant = tenant_of(request)
    tenant.check("ask")
    name = unquote(uri.removeprefix(SCHEME))
    if not uri.startswith(SCHEME) or runtime.stores is None:
        raise NotFound(f"there is no resource {uri[:200]!r}")
    tenant.check_collection(name)
    info = await runtime.stores.collections.info(name, tenant.principals)
    contents = types.TextResourceContents(
        uri=uri, mime_type="application/json", text=info.model_dump_json()
    )
    return types.ReadResourceResult(contents=[contents])
