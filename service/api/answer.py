"""`POST /answer`, `POST /answer/stream` and `GET /answer/stream`.

Dependencies check everything that can be refused before the first byte is sent, in this order: key,
content type, size, JSON, fields, availability in this deployment, admission.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import unquote_to_bytes

import orjson
from fastapi import APIRouter, Depends, Query, Request
from pydantic import ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from service.answer.events import BaseEvent, Judgement
from service.answer.fold import collect
from service.answer.request import AnswerRequest, PreparedRequest, parse_request
from service.api.bodies import JSON, body_schema, read_json
from service.api.event_stream import EventStream, framed
from service.api.problems import (
    MalformedRequest,
    ReconnectRefused,
    documented,
    problem_response,
)
from service.api.question_task import (
    BUFFERED_EVENTS,
    QuestionTask,
    disconnected,
    open_question,
    record,
)
from service.api.recordings import Origin, RecordingReader, Recordings, idempotency_key
from service.api.security import check_collection, require, tenant_of
from service.core.domain import Answer, Problem, Timing
from service.core.errors import InvalidRequest
from service.runtime import Runtime

LAST_EVENT: Final = "last-event-id"
TAG: Final = frozenset({"event"})
TAG_AND_STEP: Final = frozenset({"event", "step"})
REFUSALS: Final = (400, 401, 403, 404, 408, 409, 410, 413, 415, 422, 429, 500, 503)
QUERY_REFUSALS: Final = (400, 401, 403, 404, 409, 410, 422, 429, 500, 503)
ENDED: Final[dict[int | str, dict[str, Any]]] = {
    204: {"description": "The event in `Last-Event-ID` was the last one of its stream."}
}
BODY: Final = body_schema("AnswerRequest")
KEY_HEADER: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Any text of 1 to 255 visible ASCII characters. A repeated request with the "
    "same key is not answered again.",
    "schema": {"type": "string", "pattern": r"^[\x21\x23-\x7e]{1,255}$"},
}
LAST_EVENT_HEADER: Final[dict[str, Any]] = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The id of the last event received. The stream continues after it.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}-[0-9]{1,9}$"},
}

Events = QuestionTask | RecordingReader

router = APIRouter(tags=["answer"], dependencies=[Depends(require("ask"))])


class AnswerQuery(AnswerRequest):
    """The request as query parameters, for EventSource. `filter` and `history` are JSON text."""

    model_config = ConfigDict(strict=False)

    filter: str | None = Field(  # type: ignore[assignment]  # a query parameter is no object
        None, description="JSON object with a value, or a list of values, per field."
    )
    history: str = Field(  # type: ignore[assignment]
        "[]", description="JSON list of the conversation's earlier messages."
    )

    def request(self) -> AnswerRequest:
        """Return the request. Raises InvalidRequest if `filter` is not a JSON object of values, or
        `history` no JSON list of messages."""
        values = self.model_dump()
        for name, kind in (("filter", "object"), ("history", "list")):
            if values[name] is not None:
                try:
                    values[name] = orjson.loads(values[name])
                except orjson.JSONDecodeError:
                    raise InvalidRequest(
                        f"{name}: not valid JSON; send a JSON {kind} as text"
                    ) from None
        return parse_request(values)


async def body_request(request: Request) -> AnswerRequest:
    """Parse the request in the body."""
    return parse_request(await read_json(request))


async def utf8_query(request: Request) -> None:
    """Dependency: refuse query strings that are not UTF-8, because they would be decoded
    wrongly.
    """
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        raise MalformedRequest(
            "The query string is not valid UTF-8. Percent-encode it as UTF-8."
        ) from None


async def query_request(query: Annotated[AnswerQuery, Query()]) -> AnswerRequest:
    """Dependency: parse the request in the query string."""
    return query.request()


async def prepare(request: Request, asked: AnswerRequest) -> PreparedRequest:
    """Prepare the question, unless it is. Raises InvalidRequest, LoopUnavailable, NotFound or
    NotAllowed."""
    if isinstance(asked, PreparedRequest):
        return asked
    runtime: Runtime = request.app.state.runtime
    return await runtime.prepare(asked, partial(check_collection, tenant_of(request)))


async def answering_of_body(request: Request) -> AsyncIterator[Events]:
    """Dependency: admit the question in the body, and answer it until the response ends.

    With `Last-Event-ID`, continue the stream of an earlier question.
    """
    if LAST_EVENT in request.headers:
        with _resumed(request) as reading:
            yield reading
        return
    async with open_events(request, await body_request(request)) as events:
        yield events


async def ending_of_body(request: Request) -> AsyncIterator[Events]:
    """Dependency: as `answering_of_body`, for responses without intermediate events."""
    asked = await body_request(request)
    async with open_events(request, asked, only_end=True, unsent=True) as events:
        yield events


async def answering_of_query(
    request: Request, asked: Annotated[AnswerRequest, Depends(query_request)]
) -> AsyncIterator[Events]:
    """Dependency: as `answering_of_body`, for the query string."""
    if LAST_EVENT in request.headers:
        with _resumed(request) as reading:
            yield reading
        return
    async with open_events(request, asked, kept=True) as events:
        yield events


@asynccontextmanager
async def open_events(
    request: Request,
    asked: AnswerRequest,
    *,
    kept: bool = False,
    only_end: bool = False,
    unsent: bool = False,
) -> AsyncIterator[Events]:
    """Admit a question and answer it; leaving the context ends that. Its events are recorded if
    `kept` is set, or if the request has an `Idempotency-Key`.

    `only_end`: only the last events are needed. `unsent`: nothing is sent before the end, so
    disconnects are watched. Raises the errors of `prepare`, `open_question` and `record`.
    """
    key = idempotency_key(request.headers.get("idempotency-key"))
    prepared = await prepare(request, asked)
    if key is None and not kept:
        async with open_question(request, prepared, only_end=only_end, unsent=unsent) as task:
            yield task
        return
    path = f"{request.method} {request.url.path}"
    origin = Origin(tenant_of(request).name, path, key)
    recording = await record(request, prepared, origin, only_end=only_end)
    with recording.reading() as reading:
        leaving = asyncio.create_task(_leave(request, reading)) if unsent else None
        try:
            yield reading
        finally:
            if leaving is not None:
                leaving.cancel()


async def _leave(request: Request, reading: RecordingReader) -> None:
    """End the reading when the client disconnects, because nothing is sent before the end that
    would reveal it.
    """
    await disconnected(request)
    reading.leave()


@contextmanager
def _resumed(request: Request) -> Iterator[RecordingReader]:
    recordings: Recordings = request.app.state.recordings
    tenant = tenant_of(request)
    recording, seq = recordings.find(tenant.name, request.headers[LAST_EVENT])
    check_collection(tenant, recording.collection)
    if recording.over(seq):
        raise ReconnectRefused
    with recording.reading(seq) as reading:
        yield reading


@router.post(
    "/answer",
    response_model=Answer,
    responses=documented(*REFUSALS, 504),
    openapi_extra=BODY | {"parameters": [KEY_HEADER]},
    summary="Answer a question",
)
async def answer(task: Annotated[Events, Depends(ending_of_body)]) -> Response:
    """Return the answer with its route, steps and citations. If the client disconnects, the
    question is cancelled.

    With an `Idempotency-Key`, a repeated request gets the answer of the first one for a minute
    after its end, and a disconnected client has 10 seconds to repeat it. The keys of each API key
    are its own. A question that failed with a status of 500 or more is asked again."""
    result = await collect(task.events())
    if isinstance(result, Problem):
        return problem_response(result)
    headers = {"Server-Timing": server_timing(result.timing_ms)}
    return Response(result.model_dump_json(), 200, headers, JSON)


def server_timing(timing: Timing) -> str:
    """Return the header field of W3C's Server Timing, in milliseconds."""
    return ", ".join(f"{name};dur={value:g}" for name, value in timing)


@router.post(
    "/answer/stream",
    response_class=StreamingResponse,
    responses=documented(*REFUSALS) | ENDED,
    openapi_extra=BODY | {"parameters": [KEY_HEADER, LAST_EVENT_HEADER]},
    summary="Answer a question and stream its events",
)
async def answer_stream(
    task: Annotated[Events, Depends(answering_of_body)],
) -> EventStream:
    """Stream every event as it happens, as Server-Sent Events: `start` first, then the steps,
    `answer` or `error` exactly once, and `done` last.

    With an `Idempotency-Key`, the events are stored: a repeated request gets all of them, and one
    with `Last-Event-ID` those after that event. See `GET /answer/stream`."""
    return EventStream(encoded(task))


@router.get(
    "/answer/stream",
    response_class=StreamingResponse,
    responses=documented(*QUERY_REFUSALS) | ENDED,
    dependencies=[Depends(utf8_query)],
    openapi_extra={"parameters": [LAST_EVENT_HEADER]},
    summary="Answer a question and stream its events, for EventSource",
)
async def answer_stream_query(
    task: Annotated[Events, Depends(answering_of_query)],
) -> EventStream:
    """Stream every event as it happens, as Server-Sent Events. EventSource reconnects with the
    header `Last-Event-ID` and gets the events after that one, for 10 seconds while the question
    runs and for a minute after its end. It gets 204 if that was the last event, 410 if the events
    are no longer stored, and 409 if another gateway has them."""
    return EventStream(encoded(task))


async def encoded(task: Events) -> AsyncIterator[bytes]:
    """Yield the encoded events of a question. Available events are joined, since a write costs as
    much as several events.
    """
    ready: list[bytes] = []
    async for event in task.events():
        ready.append(encode(task.id, event))
        if not task.more or len(ready) == BUFFERED_EVENTS:
            yield b"".join(ready)
            ready.clear()


def encode(answer_id: str, event: BaseEvent) -> bytes:
    """Encode an event: its tag becomes `event`, its other fields `data`.

    `step` is omitted if it is null, and so are absent fields of a judgement.
    """
    if isinstance(event, Judgement):
        data = event.model_dump_json(exclude=set(TAG), exclude_none=True)
    else:
        left_out = TAG if event.step is not None else TAG_AND_STEP
        data = event.model_dump_json(exclude=set(left_out))
    name: str = getattr(event, "event")  # noqa: B009 (every event has its tag; the base has not)
    return framed(name, data, f"{answer_id}-{event.seq}")
