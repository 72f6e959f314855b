"""`POST /answer`, `POST /answer/stream`, `GET /answer/stream`.

Everything that can be refused is refused by dependencies, in this order, before the first byte:
key, content type, size, JSON, fields, what this deployment has, admission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Depends, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from service.answering import collect
from service.api.asking import Answering, open_answering
from service.api.bodies import JSON, read_json
from service.api.problems import (
    MalformedRequest,
    ReconnectRefused,
    documented,
    problem_response,
)
from service.api.schemas import AnswerQuery, AnswerRequest, parse_request
from service.api.security import require_key
from service.domain import Answer, Problem
from service.events import BaseEvent, Judgement
from service.inquiry import QuestionRequest
from service.runtime import Runtime
from service.settings import Settings

TAG: Final = frozenset({"event"})
TAG_AND_STEP: Final = frozenset({"event", "step"})
LINE_BREAKS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
REFUSALS: Final = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503)
QUERY_REFUSALS: Final = (400, 401, 403, 404, 422, 429, 500, 503)
BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/AnswerRequest"}}},
    }
}

router = APIRouter(tags=["answer"], dependencies=[Depends(require_key)])


async def body_request(request: Request) -> AnswerRequest:
    """The request in the body."""
    settings: Settings = request.app.state.settings
    return parse_request(await read_json(request, settings.server.max_body_bytes))


async def utf8_query(request: Request) -> None:
    """Dependency: refuse a query string that is no UTF-8; it would be garbled silently."""
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        raise MalformedRequest("the query string is no UTF-8") from None


async def no_reconnect(request: Request) -> None:
    """Dependency: an EventSource that reconnects by itself must not ask, and pay, again."""
    if "last-event-id" in request.headers:
        raise ReconnectRefused


async def query_request(query: Annotated[AnswerQuery, Query()]) -> AnswerRequest:
    """Dependency: the request in the query string."""
    return query.request()


async def prepare(request: Request, asked: AnswerRequest) -> QuestionRequest:
    """Raises InvalidRequest, LoopUnavailable, NotFound."""
    runtime: Runtime = request.app.state.runtime
    return await runtime.prepare(**asked.arguments())


async def answering_of_body(request: Request) -> AsyncIterator[Answering]:
    """Dependency: the question in the body, admitted and under way until the response ends."""
    prepared = await prepare(request, await body_request(request))
    async with open_answering(request, prepared) as answering:
        yield answering


async def ending_of_body(request: Request) -> AsyncIterator[Answering]:
    """Dependency: as `answering_of_body`, for who needs no more than the end."""
    prepared = await prepare(request, await body_request(request))
    async with open_answering(request, prepared, only_end=True) as answering:
        yield answering


async def answering_of_query(
    request: Request, asked: Annotated[AnswerRequest, Depends(query_request)]
) -> AsyncIterator[Answering]:
    """Dependency: as `answering_of_body`, from the query string."""
    async with open_answering(request, await prepare(request, asked)) as answering:
        yield answering


@router.post(
    "/answer",
    response_model=Answer,
    responses=documented(*REFUSALS, 504),
    openapi_extra=BODY,
    summary="Answer a question, in one body",
)
async def answer(answering: Annotated[Answering, Depends(ending_of_body)]) -> Response:
    """The answer with its route, steps and citations. A client that leaves cancels it."""
    result = await collect(answering.events())
    if isinstance(result, Problem):
        return problem_response(result)
    return Response(result.model_dump_json(), media_type=JSON)


@router.post(
    "/answer/stream",
    response_class=EventSourceResponse,
    responses=documented(*REFUSALS),
    openapi_extra=BODY,
    summary="Answer a question, as Server-Sent Events",
)
async def answer_stream(
    answering: Annotated[Answering, Depends(answering_of_body)],
) -> AsyncIterator[ServerSentEvent]:
    """Every event as it happens: `start` first, `answer` or `error` once, `done` last."""
    async for event in answering.events():
        yield encode(answering.id, event)


@router.get(
    "/answer/stream",
    response_class=EventSourceResponse,
    responses=documented(*QUERY_REFUSALS)
    | {204: {"description": "An EventSource reconnected; its question is not asked again."}},
    dependencies=[Depends(utf8_query), Depends(no_reconnect)],
    summary="The same for EventSource",
)
async def answer_stream_query(
    answering: Annotated[Answering, Depends(answering_of_query)],
) -> AsyncIterator[ServerSentEvent]:
    """Every event as it happens. A request with `Last-Event-ID` gets 204, which ends EventSource's
    own reconnecting."""
    async for event in answering.events():
        yield encode(answering.id, event)


def encode(answer_id: str, event: BaseEvent) -> ServerSentEvent:
    """The wire form: `event` is the tag, `data` the other fields.

    `step` is left out where there is none; so are a judgement's absent fields.
    """
    if isinstance(event, Judgement):
        data = event.model_dump_json(exclude=set(TAG), exclude_none=True)
    else:
        left_out = TAG if event.step is not None else TAG_AND_STEP
        data = event.model_dump_json(exclude=set(left_out))
    name: str = getattr(event, "event")  # noqa: B009 (every event has its tag; the base has not)
    if not data.isascii():
        data = data.translate(LINE_BREAKS)
    return ServerSentEvent(event=name, id=f"{answer_id}-{event.seq}", raw_data=data)
