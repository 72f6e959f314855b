"""`POST /answer`, `POST /answer/stream` and `GET /answer/stream`.

Dependencies check everything that can be refused before the first byte is sent, in this order: key,
content type, size, JSON, fields, availability in this deployment, admission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final
from urllib.parse import unquote_to_bytes

import orjson
from fastapi import APIRouter, Depends, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import ConfigDict, Field
from starlette.responses import Response

from service.answer.events import BaseEvent, Judgement
from service.answer.request import AnswerRequest, PreparedRequest, parse_request
from service.api.asking import Answering, open_answering
from service.api.bodies import JSON, read_json
from service.api.problems import (
    MalformedRequest,
    ReconnectRefused,
    documented,
    problem_response,
)
from service.api.security import access_of, check_collection, require, tenant_of
from service.core.domain import Answer, Problem
from service.core.errors import InvalidRequest
from service.runtime import Runtime
from service.strategies.pipeline import collect

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

router = APIRouter(tags=["answer"], dependencies=[Depends(require("ask"))])


class AnswerQuery(AnswerRequest):
    """The request as query parameters, for EventSource. `filter` is JSON text."""

    model_config = ConfigDict(strict=False)

    filter: str | None = Field(  # type: ignore[assignment]  # a query parameter is no object
        None, description="JSON object with a value, or a list of values, per field."
    )

    def request(self) -> AnswerRequest:
        """Return the request. Raises InvalidRequest if `filter` is not a JSON object of values."""
        values = self.model_dump()
        if self.filter is not None:
            try:
                values["filter"] = orjson.loads(self.filter)
            except orjson.JSONDecodeError:
                raise InvalidRequest("filter: not valid JSON; send a JSON object as text") from None
        return parse_request(values)


async def body_request(request: Request) -> AnswerRequest:
    """Parse the request in the body."""
    return parse_request(await read_json(request))


async def utf8_query(request: Request) -> None:
    """Dependency: refuse query strings that are not UTF-8, which would be decoded wrongly."""
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        raise MalformedRequest(
            "The query string is not valid UTF-8. Percent-encode it as UTF-8."
        ) from None


async def no_reconnect(request: Request) -> None:
    """Dependency: refuse automatic reconnects of an EventSource, which would ask the question
    again."""
    if "last-event-id" in request.headers:
        raise ReconnectRefused


async def query_request(query: Annotated[AnswerQuery, Query()]) -> AnswerRequest:
    """Dependency: parse the request in the query string."""
    return query.request()


async def prepare(request: Request, asked: AnswerRequest) -> PreparedRequest:
    """Prepare the question, and count it for its tenant.

    Raises InvalidRequest, LoopUnavailable, NotFound, NotAllowed or RateLimited.
    """
    runtime: Runtime = request.app.state.runtime
    tenant = tenant_of(request)
    if asked.collection is not None:
        check_collection(tenant, asked.collection)
    prepared = await runtime.prepare(asked)
    check_collection(tenant, prepared.collection)
    access_of(request).count_question(request, tenant)
    return prepared


async def answering_of_body(request: Request) -> AsyncIterator[Answering]:
    """Dependency: admit the question in the body, and answer it until the response ends."""
    prepared = await prepare(request, await body_request(request))
    async with open_answering(request, prepared) as answering:
        yield answering


async def ending_of_body(request: Request) -> AsyncIterator[Answering]:
    """Dependency: as `answering_of_body`, for responses without intermediate events."""
    prepared = await prepare(request, await body_request(request))
    async with open_answering(request, prepared, only_end=True) as answering:
        yield answering


async def answering_of_query(
    request: Request, asked: Annotated[AnswerRequest, Depends(query_request)]
) -> AsyncIterator[Answering]:
    """Dependency: as `answering_of_body`, for the query string."""
    async with open_answering(request, await prepare(request, asked)) as answering:
        yield answering


@router.post(
    "/answer",
    response_model=Answer,
    responses=documented(*REFUSALS, 504),
    openapi_extra=BODY,
    summary="Answer a question",
)
async def answer(answering: Annotated[Answering, Depends(ending_of_body)]) -> Response:
    """Return the answer with its route, steps and citations. If the client disconnects, the
    question is cancelled."""
    result = await collect(answering.events())
    if isinstance(result, Problem):
        return problem_response(result)
    return Response(result.model_dump_json(), media_type=JSON)


@router.post(
    "/answer/stream",
    response_class=EventSourceResponse,
    responses=documented(*REFUSALS),
    openapi_extra=BODY,
    summary="Answer a question and stream its events",
)
async def answer_stream(
    answering: Annotated[Answering, Depends(answering_of_body)],
) -> AsyncIterator[ServerSentEvent]:
    """Stream every event as it happens, as Server-Sent Events: `start` first, then the steps,
    `answer` or `error` exactly once, and `done` last."""
    async for event in answering.events():
        yield encode(answering.id, event)


@router.get(
    "/answer/stream",
    response_class=EventSourceResponse,
    responses=documented(*QUERY_REFUSALS)
    | {
        204: {
            "description": "Automatic reconnect of an EventSource. The question is not asked again."
        }
    },
    dependencies=[Depends(utf8_query), Depends(no_reconnect)],
    summary="Answer a question and stream its events, for EventSource",
)
async def answer_stream_query(
    answering: Annotated[Answering, Depends(answering_of_query)],
) -> AsyncIterator[ServerSentEvent]:
    """Stream every event as it happens, as Server-Sent Events. A request with the header
    `Last-Event-ID` gets 204, which stops EventSource from reconnecting."""
    async for event in answering.events():
        yield encode(answering.id, event)


def encode(answer_id: str, event: BaseEvent) -> ServerSentEvent:
    """Encode an event: its tag becomes `event`, its other fields `data`.

    `step` is omitted if it is null, and so are absent fields of a judgement.
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
