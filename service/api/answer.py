"""One question in progress at the HTTP edge.

A question is answered in the task of its response, and each event is written when it is emitted.
Therefore a reader that is slow holds the question back, and a client that leaves cancels it at
once, wherever it waits. Questions that are recorded have tasks of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
)
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import unquote_to_bytes

import orjson
import structlog
from fastapi import APIRouter, Depends, Query, Request
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from service.answer.events import AnswerReady, BaseEvent, Done, Failed, Start
from service.answer.fold import collect
from service.answer.inquiry import Emit
from service.answer.request import AnswerRequest, PreparedRequest, parse_request
from service.api.access import require, tenant_of
from service.api.admission import DETAIL, EVENT, Place
from service.api.edge import edge_of
from service.api.recordings import (
    Origin,
    Recording,
    RecordingReader,
    Recordings,
    digest_of,
    idempotency_key,
)
from service.api.wire import (
    CLIENT_GONE,
    CLIENT_STALLED,
    JSON,
    MALFORMED_REQUEST,
    READ_REFUSALS,
    REFUSALS,
    EventStream,
    Refusal,
    Write,
    body_schema,
    documented,
    encode,
    json_body,
    problem_response,
    request_id,
)
from service.core.concurrency import Interrupted, emitted, interruptible, running
from service.core.connections import TRACE_FIELDS
from service.core.domain import Answer, Problem
from service.core.errors import Draining, InvalidRequest, RevelatorError
from service.core.private import problem_of
from service.runtime import new_id
from service.telemetry.logs import log_question

log = structlog.get_logger(__name__)

ENDS: Final = (AnswerReady, Failed, Done)
# seconds that an event may wait for a client that does not read, at least; at most twice as long
STALLED_S: Final = 60.0


class QuestionTask:
    """A question in progress, which has its `place`. It is answered in the task that calls `run`.

    With `only_end`, only the last events are emitted: `answer` or `error`, and `done`.
    """

    def __init__(
        self, request: Request, question: PreparedRequest, place: Place, only_end: bool
    ) -> None:
        self._edge = edge = edge_of(request)
        self._question, self._place, self._only_end = question, place, only_end
        self.collection = question.collection
        self._request_id = request_id(request)
        made_here = getattr(request.state, "own_id", False)
        self.id = self._request_id if made_here else new_id()
        self._caller = {
            name: request.headers[name] for name in TRACE_FIELDS if name in request.headers
        }
        self._seen: Callable[[Answer], None] | None = None
        if edge.settings.ingest.keep_files and question.plain is None:
            self._seen = partial(edge.answered.put, tenant_of(request), question.collection)
        self._answering: set[interruptible] = set()
        self._cut: RevelatorError | None = None
        self._last: BaseEvent | None = None  # that was emitted
        self._waiting_since: float | None = None  # for the client to read

    async def run(self, emit: Emit) -> None:
        """Answer the question and emit its events, from `start` to `done`. One that is cut off ends
        with `error` and `done`. Cancelling the caller's task cancels the question."""
        self._look()
        try:
            with interruptible(self._answering):
                await self._answer(emit)
        except Interrupted:
            pass
        except Draining as error:
            self._cut = error
        except Exception:
            log.exception("question failed", id=self.id)
        finally:
            self._watch.cancel()
            self._place.release()
        last = self._last
        if isinstance(last, Done):
            return
        problem = problem_of(
            self._cut or RevelatorError("The question ended before it was answered. Ask it again."),
            self._request_id,
        )
        seq, ms = (last.seq, last.ms) if last else (-1, 0.0)
        await emit(Failed(seq=seq + 1, ms=ms, step=last and last.step, problem=problem))
        await emit(Done(seq=seq + 2, ms=ms, step=last and last.step))

    async def stream(self, write: Write) -> None:
        """Answer the question and write its events, each encoded."""

        async def emit(event: BaseEvent) -> None:
            await write(encode(self.id, event))

        await self.run(emit)

    def cut_off(self, why: RevelatorError) -> None:
        """Stop the question. Its stream ends with an `error` that gives this reason."""
        if self._cut is None:
            self._cut = why
            for answering in self._answering:
                answering.fire()

    def leave(self) -> None:
        """Stop the question, because the client has disconnected."""
        self.cut_off(Refusal(CLIENT_GONE, "The client disconnected before the answer was ready."))

    async def _answer(self, emit: Emit) -> None:
        if self._cut is not None:
            return
        with self._edge.drain.work(lambda: self.cut_off(Draining(DETAIL))):
            await self._edge.runtime.answer(
                self._question,
                partial(self._forward, emit),
                answer_id=self.id,
                queued_s=self._place.waited_s,
                caller=self._caller,
                ended=log_question,
            )

    async def _forward(self, emit: Emit, event: BaseEvent) -> None:
        await self._edge.turns.take(EVENT)
        if isinstance(event, AnswerReady) and self._seen is not None:
            self._seen(event.body)
        elif isinstance(event, Failed):  # it names the request, as in other responses
            problem = event.problem.model_copy(update={"request_id": self._request_id})
            event = event.model_copy(update={"problem": problem})
        if not self._only_end or isinstance(event, ENDS):
            self._waiting_since = time.monotonic()
            await emit(event)
            self._waiting_since = None
            self._last = event
        if isinstance(event, Start):  # it reaches the socket before the work begins
            await asyncio.sleep(0)

    def _look(self) -> None:
        """Cut the question off if its client does not read. To look now and then costs less than a
        timer for each event."""
        since = self._waiting_since
        if since is not None and time.monotonic() - since >= STALLED_S:
            detail = f"The client read no event for {STALLED_S:.0f} s."
            self.cut_off(Refusal(CLIENT_STALLED, detail))
        else:
            self._watch = asyncio.get_running_loop().call_later(STALLED_S, self._look)


async def enter(request: Request) -> Place:
    """Count a question of the tenant, and wait for its place, which must be released. Raises
    RATE_LIMITED, Overloaded, Draining or CLIENT_GONE.
    """
    edge = edge_of(request)
    edge.access.count(request, "questions")
    return await edge.admission.enter(lambda: disconnected(request), tenant_of(request).name)


async def record(
    request: Request, question: PreparedRequest, origin: Origin, only_end: bool
) -> Recording:
    """Admit a prepared question, and answer it in a task of the app, not of the request.

    The same request with the same key gets the existing recording, and is not counted as a
    question. Raises KEY_REUSED, and the errors of `enter`.
    """
    edge = edge_of(request)
    recordings = edge.recordings
    digest = digest_of(question)
    if found := recordings.same(origin, digest):
        return found
    place = await enter(request)
    with ExitStack() as stack:
        stack.callback(place.release)
        if found := recordings.same(origin, digest):  # of one that waited at the same time
            return found
        task = QuestionTask(request, question, place, only_end)

        def cancel() -> None:
            left = "The client disconnected and did not come back in time."
            task.cut_off(Refusal(CLIENT_GONE, left))

        recording = Recording(task.id, origin, question.collection, digest, cancel)
        recordings.add(recording)
        recording.watch()
        edge.tasks.spawn(f"recording {task.id}", _record(recordings, task, recording))
        stack.pop_all()  # the place is the task's now
    return recording


async def _record(recordings: Recordings, task: QuestionTask, recording: Recording) -> None:
    async def keep(event: BaseEvent) -> None:
        recordings.put(recording, event)

    try:
        await task.run(keep)
    except BaseException:
        recording.failed = True
        raise
    finally:
        recordings.end(recording)


async def disconnected(request: Request) -> None:
    """Return when the client has disconnected. Read the body first; nothing else may receive
    meanwhile."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


LAST_EVENT: Final = "last-event-id"
ENDED: Final[dict[int | str, dict[str, Any]]] = {
    204: {"description": "The event in `Last-Event-ID` was the last one of its stream."}
}
BODY: Final = body_schema(AnswerRequest)
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


body_request: Final = json_body(AnswerRequest)


async def utf8_query(request: Request) -> None:
    """Dependency: refuse query strings that are not UTF-8, because they would be decoded
    wrongly.
    """
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        raise Refusal(
            MALFORMED_REQUEST, "The query string is not valid UTF-8. Percent-encode it as UTF-8."
        ) from None


async def prepare(request: Request, asked: AnswerRequest) -> PreparedRequest:
    """Prepare the question, unless it is. Raises InvalidRequest, LoopUnavailable, NotFound or
    NOT_ALLOWED."""
    if isinstance(asked, PreparedRequest):
        return asked
    tenant = tenant_of(request)
    return await edge_of(request).runtime.prepare(asked, tenant.check_collection, tenant.principals)


async def answering_of_body(request: Request) -> AsyncIterator[Events]:
    """Dependency: admit the question in the body, and answer it until the response ends.

    With `Last-Event-ID`, continue the stream of an earlier question.
    """
    opened = _resumed(request) or open_events(request, await body_request(request))
    async with opened as events:
        yield events


async def ending_of_body(request: Request) -> AsyncIterator[Events]:
    """Dependency: as `answering_of_body`, for responses without intermediate events."""
    asked = await body_request(request)
    async with open_events(request, asked, only_end=True, unsent=True) as events:
        yield events


async def answering_of_query(
    request: Request, query: Annotated[AnswerQuery, Query()]
) -> AsyncIterator[Events]:
    """Dependency: as `answering_of_body`, for the query string."""
    async with _resumed(request) or open_events(request, query.request(), kept=True) as events:
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
    disconnects are watched. Raises the errors of `prepare`, `enter` and `record`.
    """
    key = idempotency_key(request.headers.get("idempotency-key"))
    prepared = await prepare(request, asked)
    async with AsyncExitStack() as stack:
        events: Events
        if key is None and not kept:
            place = await enter(request)
            stack.callback(place.release)
            events = QuestionTask(request, prepared, place, only_end)
        else:
            tenant, path = tenant_of(request), f"{request.method} {request.url.path}"
            origin = Origin(tenant.name, path, key, tenant.principals)
            recording = await record(request, prepared, origin, only_end)
            events = await stack.enter_async_context(recording.reading())
        if unsent:
            await stack.enter_async_context(running(_leave(request, events)))
        yield events


async def _leave(request: Request, events: Events) -> None:
    """End the events when the client disconnects."""
    await disconnected(request)
    events.leave()


def _resumed(request: Request) -> AbstractAsyncContextManager[Events] | None:
    """Return a reader of the question whose event the request names, None if it names none."""
    event = request.headers.get(LAST_EVENT)
    if event is None:
        return None
    tenant = tenant_of(request)
    recording, seq = edge_of(request).recordings.find(tenant.name, event, tenant.principals)
    tenant.check_collection(recording.collection)
    if recording.over(seq):  # which stops an EventSource
        raise HTTPException(204)
    return recording.reading(seq)


@router.post(
    "/answer",
    response_model=Answer,
    responses=documented(*REFUSALS, 409, 410, 504),
    openapi_extra=BODY | {"parameters": [KEY_HEADER]},
    summary="Answer a question",
)
async def answer(task: Annotated[Events, Depends(ending_of_body)]) -> Response:
    """Return the answer with its route, steps and citations. If the client disconnects, the
    question is cancelled.

    With an `Idempotency-Key`, a repeated request gets the answer of the first one for a minute
    after its end, and a disconnected client has 10 seconds to repeat it. The keys of each API key
    are its own. A question that failed with a status of 500 or more is asked again."""
    result = await collect(emitted(task.run))
    if isinstance(result, Problem):
        return problem_response(result)
    timing = ", ".join(f"{name};dur={value:g}" for name, value in result.timing_ms)  # in ms
    return Response(result.model_dump_json(), 200, {"Server-Timing": timing}, JSON)


@router.post(
    "/answer/stream",
    response_class=StreamingResponse,
    responses=documented(*REFUSALS, 409, 410) | ENDED,
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
    return EventStream(task.stream)


@router.get(
    "/answer/stream",
    response_class=StreamingResponse,
    responses=documented(*READ_REFUSALS, 400, 409, 410) | ENDED,
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
    return EventStream(task.stream)
