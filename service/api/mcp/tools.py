"""The tools: `answer`, `search` and `ingest`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import orjson
from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from service.answer.events import BaseEvent
from service.answer.fold import collect
from service.answer.narration import Narrator
from service.answer.request import AnswerRequest
from service.api.access import authenticate, own_host, tenant_of
from service.api.answer import open_events
from service.api.documents import collections_of, ingest, numbered
from service.api.openai.completions import content
from service.api.search import FoundPassages, SearchQuery, search
from service.api.tenants import Right
from service.api.wire import MAX_BODY_BYTES, read_body
from service.core.concurrency import closing, emitted
from service.core.domain import AnswerSummary, Problem
from service.core.errors import NotFound, RevelatorError
from service.core.validation import Strict, parse
from service.retrieval.reports import IngestReport

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager


MOST_DOCUMENTS: Final = 1_000
TITLE_OF_NONE: Final = "(no title)"

Report = Callable[[str], Awaitable[None]]


class IngestArguments(Strict):
    collection: str = Field(max_length=200, description="Collection to fill. It must exist.")
    documents: Annotated[list[Any], Field(min_length=1, max_length=MOST_DOCUMENTS)] = Field(
        description="Documents: objects with `text`, and optionally `id`, `title` and metadata "
        "fields of any name, such as `url`. One with the id of an earlier one replaces it."
    )


# Text for people and models, and an object for programs.
ToolResult = tuple[str, BaseModel]


@dataclass(frozen=True)
class ToolSpec:
    """A tool, the right that it needs, and the function that runs it. `run` reports each step in
    one line.
    """

    name: str
    right: Right
    description: str
    arguments: type[BaseModel]
    result: type[BaseModel]
    run: Callable[[Request, Any, Report], Awaitable[ToolResult]]

    async def call(self, request: Request, arguments: object, report: Report) -> ToolResult:
        """Run the tool. Raises InvalidRequest, which names each wrong argument, and the errors of
        the tool.
        """
        return await self.run(request, parse(self.arguments, self._read(arguments)), report)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments. Optional ones have flat types, because simple clients do not
        read `anyOf`."""
        schema: dict[str, Any] = self.arguments.model_json_schema()
        schema["properties"] = {name: _flat(field) for name, field in schema["properties"].items()}
        return schema

    def _read(self, arguments: object) -> object:
        """Return the arguments with text parsed as JSON where the type is another one. Some clients
        send only text."""
        read = dict(arguments) if isinstance(arguments, dict) else {}
        for name, field in self.schema["properties"].items():
            if isinstance(read.get(name), str) and field.get("type", "string") != "string":
                with suppress(orjson.JSONDecodeError):
                    read[name] = orjson.loads(read[name])
        return read or arguments


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an optional argument without null, which means the same as absence."""
    match [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]:
        case [dict(kind)]:
            return {k: v for k, v in schema.items() if k not in ("anyOf", "default")} | kind
    return schema


async def _answer(request: Request, asked: AnswerRequest, report: Report) -> ToolResult:
    async with open_events(request, asked) as events:
        result = await collect(_with_reports(emitted(events.run), report))
    if isinstance(result, Problem):
        raise RevelatorError(result.detail)
    fields = result.model_dump(include=set(AnswerSummary.model_fields))
    return content(result, in_text=True)[0], AnswerSummary.model_validate(fields)


async def _with_reports(
    events: AsyncIterator[BaseEvent], report: Report
) -> AsyncIterator[BaseEvent]:
    """Yield the events; each is reported before it is passed on."""
    narrator = Narrator()
    async with closing(events) as stream:
        async for event in stream:
            if line := narrator.line(event):
                await report(line)
            yield event


async def _search(request: Request, asked: SearchQuery, _: Report) -> ToolResult:
    found = await search(request, asked)
    text = "\n\n".join(
        f"[{passage.rank}] {passage.title or TITLE_OF_NONE} ({passage.passage_id})\n{passage.text}"
        for passage in found.passages
    )
    return text or "No passage matches.", found


async def _ingest(request: Request, asked: IngestArguments, _: Report) -> ToolResult:
    tenant_of(request).check_collection(asked.collection)
    stores = await collections_of(request)
    report = await ingest(request, stores, asked.collection, numbered(asked.documents))
    lines = [f"{report.indexed} indexed, {report.unchanged} unchanged, {len(report.failed)} failed"]
    lines += [f"document {failed.index}: {failed.problem}" for failed in report.failed]
    return "\n".join(lines), report


TOOLS: Final = {
    tool.name: tool
    for tool in (
        ToolSpec(
            "answer",
            "ask",
            "Answer a question from the passages of a collection, also one that needs several "
            "searches. The answer has citations, or states that the passages hold none.",
            AnswerRequest,
            AnswerSummary,
            _answer,
        ),
        ToolSpec(
            "search",
            "ask",
            "Search a collection and return the best passages, without answering.",
            SearchQuery,
            FoundPassages,
            _search,
        ),
        ToolSpec(
            "ingest",
            "write",
            "Add documents to a collection, or replace those with the same ids.",
            IngestArguments,
            IngestReport,
            _ingest,
        ),
    )
}


def tools_of(request: Request) -> dict[str, ToolSpec]:
    """Return the tools that the key of a request may use, by name."""
    tenant = tenant_of(request)
    return {name: tool for name, tool in TOOLS.items() if tenant.may(tool.right)}


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
        manager = await anyio.to_thread.run_sync(_make_manager)  # the first one imports the SDK
        async with manager.run():
            await manager.handle_request(scope, _again(body, receive), send)


def mcp_route() -> Route:
    return Route(PATH, McpEndpoint(), include_in_schema=False)


def _make_manager() -> StreamableHTTPSessionManager:
    """Return what handles one request."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415

    from service.api.mcp.server import make_server  # noqa: PLC0415

    return StreamableHTTPSessionManager(
        make_server(), stateless=True, max_request_body_size=MAX_BODY_BYTES
    )


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that repeats the body that was read, and then continues."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return left.pop() if left else await receive()

    return received
