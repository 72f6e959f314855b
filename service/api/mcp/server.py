"""The server of the official SDK, with handlers that act for the request of each call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote, unquote

import mcp_types as types
from fastapi import Request
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from service import __version__
from service.api.access import tenant_of
from service.api.edge import edge_of
from service.api.mcp.tools import ToolSpec, tools_of
from service.api.tenants import Tenant
from service.api.wire import disclosed, unexpected
from service.core.errors import NotFound, RevelatorError

if TYPE_CHECKING:
    from service.retrieval.collections.catalog import Collections

NAME: Final = "revelator"
SCHEME: Final = "revelator://collections/"
INSTRUCTIONS: Final = (
    "Answers questions from collections of passages, with citations. Use `answer` for questions, "
    "and `search` to read passages. The resources are the collections."
)
Context = ServerRequestContext[Any, Any]


def make_server() -> Server[Any]:
    """Create the server. A call acts for the request that brought it: its app and its tenant."""
    return Server(
        NAME,
        version=__version__,
        title="Revelator",
        instructions=INSTRUCTIONS,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        on_list_resources=_list_resources,
        on_read_resource=_read_resource,
    )


def _request(context: Context) -> Request:
    return cast(Request, context.request)


async def _list_tools(context: Context, _: object) -> types.ListToolsResult:
    tools = tools_of(_request(context)).values()
    return types.ListToolsResult(tools=[_described(tool) for tool in tools])


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


async def _call_tool(context: Context, called: types.CallToolRequestParams) -> types.CallToolResult:
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
        return _failed(unexpected(request, error).detail)
    return types.CallToolResult(
        content=[_text(text)], structured_content=value.model_dump(mode="json")
    )


def _text(text: str) -> types.TextContent:
    return types.TextContent(text=text)


def _failed(detail: str) -> types.CallToolResult:
    return types.CallToolResult(content=[_text(detail)], is_error=True)


@asynccontextmanager
async def _asking(context: Context) -> AsyncIterator[tuple[Tenant, Collections]]:
    """Yield the tenant of a request, which may ask, and the collections of this deployment. Errors
    become those of the protocol, with the texts of all other paths."""
    request = _request(context)
    try:
        tenant = tenant_of(request)
        tenant.check("ask")
        yield tenant, edge_of(request).runtime.retrieval.collections
    except RevelatorError as error:
        raise MCPError(types.INVALID_PARAMS, disclosed(error, request).detail) from None
    except Exception as error:
        raise MCPError(types.INTERNAL_ERROR, unexpected(request, error).detail) from None


async def _list_resources(context: Context, _: object) -> types.ListResourcesResult:
    """Return the collections that the key may use, also one that cannot be read, with the
    reason."""
    async with _asking(context) as (tenant, collections):
        listed = await collections.listed(tenant.may_use, tenant.principals)
        found = {info.name: info.description for info in listed.collections} | listed.problems
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=SCHEME + quote(name, safe=""),
                    name=name,
                    description=description or None,
                    mime_type="application/json",
                )
                for name, description in sorted(found.items())
            ]
        )


async def _read_resource(
    context: Context, wanted: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    """Return a collection with its counts, as `GET /collections/{name}` does."""
    async with _asking(context) as (tenant, collections):
        uri = str(wanted.uri)
        name = unquote(uri.removeprefix(SCHEME))
        if not uri.startswith(SCHEME):
            raise NotFound(f"there is no resource {uri[:200]!r}")
        tenant.check_collection(name)
        info = await collections.info(name, tenant.principals)
        contents = types.TextResourceContents(
            uri=uri, mime_type="application/json", text=info.model_dump_json()
        )
        return types.ReadResourceResult(contents=[contents])
