"""What goes over HTTP: bodies that are read, problems (RFC 9457) and event streams that are
sent."""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from service.answer.events import BaseEvent, Judgement
from service.api.edge import edge_of
from service.core.concurrency import Interrupted, interruptible, running
from service.core.domain import Problem
from service.core.errors import InvalidRequest, NotFound, RevelatorError, UnknownCollection
from service.core.private import problem_of
from service.core.progress import Follow
from service.core.validation import M, explain, parse

log = structlog.get_logger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
REQUEST_ID: Final = "X-Request-ID"
RETRY_AFTER_S: Final = 5


class Kind(NamedTuple):
    """A kind of error: the end of its URN, status, title, and seconds in `Retry-After`."""

    slug: str
    status: int
    title: str
    retry_after: int | None = None


class Refusal(RevelatorError):
    """An error of the HTTP edge. Those of the service are in `service.core.errors`."""

    def __init__(self, kind: Kind, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.slug, self.status, self.title, self.retry_after = kind
        self.retry_after = retry_after or self.retry_after


MALFORMED_REQUEST: Final = Kind("malformed-request", 400, "The request cannot be parsed")
KEY_MISSING: Final = Kind("key-missing", 401, "An API key is required")
TOKEN_REFUSED: Final = Kind("token-refused", 401, "The bearer token is not valid")
KEY_REFUSED: Final = Kind("key-refused", 403, "The API key is not valid")
NOT_ALLOWED: Final = Kind("not-allowed", 403, "The key does not have this right")
CROSS_SITE: Final = Kind(
    "cross-site", 403, "Requests from web pages of other sites are not allowed"
)
MODEL_NOT_FOUND: Final = Kind("model-not-found", 404, "There is no such model")
CLIENT_STALLED: Final = Kind("client-stalled", 408, "The client does not read its events")
REQUEST_TIMEOUT: Final = Kind("request-timeout", 408, "The request body did not arrive in time")
ANSWER_ELSEWHERE: Final = Kind("answer-elsewhere", 409, "Another gateway has the answer")
ANSWER_GONE: Final = Kind("answer-gone", 410, "The answer's events are no longer kept")
BODY_TOO_LARGE: Final = Kind("body-too-large", 413, "The request body is too large")
UNSUPPORTED_MEDIA_TYPE: Final = Kind(
    "unsupported-media-type", 415, "The content type is not supported"
)
KEY_REUSED: Final = Kind("idempotency-key-reused", 422, "The Idempotency-Key was used already")
RATE_LIMITED: Final = Kind("rate-limited", 429, "Too many requests for this key")
CLIENT_GONE: Final = Kind("client-gone", 499, "The client disconnected")
ISSUER_UNAVAILABLE: Final = Kind(
    "issuer-unavailable", 503, "The keys of the issuer are not available"
)
NOT_READY: Final = Kind("not-ready", 503, "The service is not ready", retry_after=1)


ErrorForm = Callable[[Problem, int | None], Response]


def add_handlers(app: FastAPI) -> None:
    """Turn every error of `app`, including the framework's own, into a problem."""
    app.add_exception_handler(RevelatorError, answer_error)
    app.add_exception_handler(RequestValidationError, answer_validation)
    app.add_exception_handler(HTTPException, answer_framework)
    app.add_exception_handler(Exception, answer_unexpected)


def request_id(request: Request) -> str:
    """Return the id that `RequestIds` assigned to the request."""
    return getattr(request.state, "request_id", None) or secrets.token_hex(8)


def problem_response(problem: Problem, retry_after: int | None = None) -> Response:
    """Return the problem as a response."""
    headers = problem_headers(problem, problem.status, retry_after)
    return Response(problem.model_dump_json(), problem.status, headers, MEDIA_TYPE)


def problem_headers(problem: Problem, status: int, retry_after: int | None) -> dict[str, str]:
    """Return the headers of a problem's response. A 503 or 429 always has `Retry-After`
    (seconds).
    """
    headers = {REQUEST_ID: problem.request_id}
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        headers["Retry-After"] = str(retry_after or RETRY_AFTER_S)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


async def answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RevelatorError)
    problem = problem_of(disclosed(error, request), request_id(request))
    # `Edge.error_forms` has those that are not problems by the beginnings of their paths
    forms = edge_of(request).error_forms.items()
    found = (form for prefix, form in forms if request.url.path.startswith(prefix))
    return next(found, problem_response)(problem, error.retry_after)


def disclosed(error: RevelatorError, request: Request) -> RevelatorError:
    """Return the error as the tenant that sent the request may read it: without the names of
    collections that it may not use."""
    tenant = getattr(request.state, "tenant", None)
    if isinstance(error, UnknownCollection) and tenant is not None:
        return error.among(tenant.may_use)
    return error


async def answer_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await answer_error(request, InvalidRequest(explain(list(error.errors()))))


async def answer_framework(request: Request, error: Exception) -> Response:
    """Handle 404 and 405 of the router, and 400 of the body parser. A 204 has no body."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    if status == HTTPStatus.NO_CONTENT:
        return Response(status_code=status)
    if status == HTTPStatus.NOT_FOUND:
        return await answer_error(
            request,
            NotFound(f"The path {request.url.path} does not exist. See /docs for all paths."),
        )
    detail, headers = str(error.detail), dict(error.headers or {})
    # each method of a path may have a route of its own; mounted files have none
    routes = (r for r in request.app.routes if r.matches(request.scope)[0] is Match.PARTIAL)
    allowed = ", ".join(sorted(method for route in routes for method in route.methods))
    if status == HTTPStatus.METHOD_NOT_ALLOWED and allowed:
        headers["Allow"] = allowed
        detail = f"This path takes {allowed}, not {request.method}."
    kind = Kind(status.phrase.lower().replace(" ", "-"), status, status.phrase)
    response = await answer_error(request, Refusal(kind, detail))
    response.headers.update(headers)
    return response


async def answer_unexpected(request: Request, error: Exception) -> Response:
    return await answer_error(request, unexpected(request, error))


def unexpected(request: Request, error: Exception) -> RevelatorError:
    """Log an error that nobody expected, and return what the client is told instead of it."""
    log.error("request failed", request_id=request_id(request), exc_info=error)
    return RevelatorError("An unexpected error occurred. It was logged under this request_id.")


# The statuses of problems that every path with a key can have, and those of one with a body.
READ_REFUSALS: Final = (401, 403, 404, 422, 429, 500, 503)
REFUSALS: Final = (400, 408, 413, 415, *READ_REFUSALS)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for OpenAPI, with a Problem under each status."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in sorted(statuses)
    }


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
EVENT_STREAM: Final = "text/event-stream"
MAX_BODY_BYTES: Final = 1_000_000
MOST_DECODED: Final = 1_000_000_000  # bytes of a compressed upload, decompressed
PIECE: Final = 65_536  # bytes that are decompressed at once
# The limit of zstd's window (8 MiB) is that of RFC 9659, and of the memory of a request.
CODINGS: Final[Mapping[str, Callable[[], Any]]] = {
    "gzip": partial(zlib.decompressobj, 16 + zlib.MAX_WBITS),
    "zstd": partial(
        zstd.ZstdDecompressor, options={zstd.DecompressionParameter.window_log_max: 23}
    ),
}
BODY_TIMEOUT_S: Final = 30.0
CHARSET: Final = re.compile(r'(?:^|;)\s*charset[^=;]*=\s*"?([^\s;"]*)')  # or as RFC 8187 has it


BODIES: Final[list[type[BaseModel]]] = []  # whose schemas no route's signature names


def body_schema(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Return the OpenAPI description of a JSON body that a dependency reads."""
    BODIES.append(model)
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {JSON: {"schema": schema}}}}


def stream_content(description: str) -> dict[str, Any]:
    """Return the OpenAPI description of a response of Server-Sent Events."""
    return {EVENT_STREAM: {"schema": {"type": "string", "description": description}}}


def content_type(request: Request, *allowed: str) -> str:
    """Return the media type. Raises UNSUPPORTED_MEDIA_TYPE (415) unless it is allowed, and in
    UTF-8."""
    kind, _, parameters = request.headers.get("content-type", "").lower().partition(";")
    if (kind := kind.strip() or "nothing") not in allowed:
        raise Refusal(
            UNSUPPORTED_MEDIA_TYPE, f"Send the body as {' or '.join(allowed)}, not as {kind[:80]}."
        )
    charset = CHARSET.search(parameters)
    if charset and charset[1] not in ("utf-8", "utf8", "us-ascii"):
        raise Refusal(UNSUPPORTED_MEDIA_TYPE, f"Send the body in UTF-8, not in {charset[1][:80]}.")
    return kind


async def read_json(request: Request) -> Any:
    """Parse a JSON body of at most MAX_BODY_BYTES.

    Raises UNSUPPORTED_MEDIA_TYPE (415), BODY_TOO_LARGE (413), REQUEST_TIMEOUT (408) or
    MALFORMED_REQUEST (400, for invalid JSON or UTF-8, or for deep nesting).
    """
    content_type(request, JSON)
    try:
        return orjson.loads(await read_body(request))
    except orjson.JSONDecodeError as error:
        raise Refusal(
            MALFORMED_REQUEST, f"The body is not valid JSON in UTF-8: {error.msg}"
        ) from None


def json_body(model: type[M]) -> Callable[[Request], Awaitable[M]]:
    """Return a dependency that reads a body of the model. It raises the errors of `read_json`, and
    InvalidRequest."""

    async def read(request: Request) -> M:
        return parse(model, await read_json(request))

    return read


async def read_body(request: Request) -> bytes:
    """Read the body. Raises BODY_TOO_LARGE as soon as the size is exceeded, REQUEST_TIMEOUT after
    30 s."""
    too_large = Refusal(BODY_TOO_LARGE, f"The body exceeds the limit of {MAX_BODY_BYTES:,} bytes.")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in decoded(request):
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError:
        raise Refusal(
            REQUEST_TIMEOUT, f"The body was not complete after {BODY_TIMEOUT_S:.0f} s."
        ) from None
    return b"".join(chunks)


async def _received(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise Refusal(
            CLIENT_GONE, "The client disconnected before its body was complete."
        ) from None


async def decoded(request: Request) -> AsyncIterator[bytes]:
    """Yield the pieces of the body, decompressed.

    Raises UNSUPPORTED_MEDIA_TYPE (415) for a coding that is not read, MALFORMED_REQUEST (400) for a
    body that is not in its coding, BODY_TOO_LARGE (413) for more than MOST_DECODED bytes, and
    CLIENT_GONE.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding == "identity":
        async for chunk in _received(request):
            yield chunk
        return
    if coding not in CODINGS:
        raise Refusal(
            UNSUPPORTED_MEDIA_TYPE,
            f"Send the body as it is or in the coding {' or '.join(CODINGS)}, not {coding[:80]}.",
        )
    decoder, size = CODINGS[coding](), 0
    broken = Refusal(MALFORMED_REQUEST, f"The body is not complete, valid {coding}.")
    async for chunk in _received(request):
        rest, more = chunk, bool(chunk)
        while more:
            if decoder.eof:  # another member, or frame, follows
                decoder = CODINGS[coding]()
            try:
                piece = decoder.decompress(rest, PIECE)
            except (zlib.error, zstd.ZstdError):
                raise broken from None
            rest = decoder.unused_data if decoder.eof else getattr(decoder, "unconsumed_tail", b"")
            more = bool(rest) or (len(piece) == PIECE and not decoder.eof)
            size += len(piece)
            if size > MOST_DECODED:
                raise Refusal(
                    BODY_TOO_LARGE, f"The body has more than {MOST_DECODED:,} bytes decompressed."
                )
            yield piece
            await asyncio.sleep(0)
    if not decoder.eof:
        raise broken


async def read_lines(request: Request, longest: int) -> AsyncIterator[bytes | None]:
    """Yield the body's lines without line ends, and None for a line longer than `longest` bytes.

    Holds at most one line and one chunk in memory. Raises REQUEST_TIMEOUT after 30 s without data.
    """
    held = bytearray()
    skipping = False
    async for chunk in chunks(request):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            held += end if not skipping else b""
            yield None if skipping or len(held) > longest else bytes(held)
            held.clear()
            skipping = False
        if not skipping:
            held += rest
        if len(held) > longest:
            held.clear()
            skipping = True
    if held or skipping:
        yield None if skipping else bytes(held)


async def chunks(request: Request) -> AsyncIterator[bytes]:
    """Yield the pieces of the body, decompressed. Raises REQUEST_TIMEOUT after 30 s without
    data."""
    stream = decoded(request)
    while True:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise Refusal(
                REQUEST_TIMEOUT, f"No data was received for {BODY_TIMEOUT_S:.0f} s."
            ) from None
        if chunk is None:
            return
        yield chunk


TOLD_S: Final = 0.25  # seconds between two events that report the progress of long work
PAUSE_S: Final = 15.0  # seconds; proxies close connections without data after longer pauses
# Some clients end a line at these, too, and with it the field.
LINE_BREAKS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


Write = Callable[[bytes], Awaitable[None]]


class EventStream(Response):
    """Sends what `work` writes, encoded events, and a comment after every `PAUSE_S` without one. If
    the client disconnects, the work is cancelled.
    """

    media_type = EVENT_STREAM

    def __init__(self, work: Callable[[Write], Awaitable[None]], comment: str = "ping") -> None:
        self.status_code, self.background = 200, None
        # nginx would buffer events
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._work = work
        self._comment = f": {comment}\n\n".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        written_at = clock()
        direct: Send = scope.get("state", {}).get("send", send)  # set by `RequestIds`
        order = asyncio.Lock()  # of tasks that write side by side, while the client is slow

        async def write(data: bytes) -> None:
            nonlocal written_at
            written_at = clock()
            async with order:
                await direct({"type": "http.response.body", "body": data, "more_body": True})

        async def attend() -> None:
            """Fill pauses until the client disconnects."""
            while True:
                try:
                    async with asyncio.timeout_at(written_at + PAUSE_S):
                        while (await receive())["type"] != "http.disconnect":
                            pass
                except TimeoutError:
                    if written_at + PAUSE_S <= clock():
                        await write(self._comment)
                else:
                    return work.fire()

        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        # Middleware adds to the head, and holds it back until a body begins. It has nothing to do
        # with events, and need not see each.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        with suppress(Interrupted), interruptible(set()) as work:
            async with running(attend()):
                await self._work(write)
                await direct({"type": "http.response.body", "body": b"", "more_body": False})


async def followed(
    work: Callable[[Follow], Awaitable[BaseModel]], request: Request, write: Write
) -> None:
    """Run the long work of a request and write its progress as events `progress`, then its result
    as `report`, or `error`. Cancelling this cancels the work."""
    now, sent = dict[str, str | int](), dict[str, str | int]()

    def follow(stage: str, done: int, total: int) -> None:
        now.update(stage=stage, done=done, total=total)

    async def report() -> BaseModel:
        return await work(follow)

    try:
        async with running(report()) as task:
            while not task.done():
                if now != sent:
                    sent = dict(now)
                    await write(framed("progress", orjson.dumps(sent).decode()))
                await asyncio.wait([task], timeout=TOLD_S)
            return await write(framed("report", task.result().model_dump_json()))
    except RevelatorError as error:
        told = disclosed(error, request)
    except Exception as error:
        told = unexpected(request, error)
    return await write(framed("error", problem_of(told, request_id(request)).model_dump_json()))


TAG: Final = {"event"}
TAG_AND_STEP: Final = {"event", "step"}


def encode(answer_id: str, event: BaseEvent) -> bytes:
    """Encode an event of an answer: its tag becomes `event`, its other fields `data`.

    `step` is omitted if it is null, and so are absent fields of a judgement.
    """
    if isinstance(event, Judgement):
        data = event.model_dump_json(exclude=TAG, exclude_none=True)
    else:
        data = event.model_dump_json(exclude=TAG if event.step is not None else TAG_AND_STEP)
    name: str = getattr(event, "event")  # noqa: B009 (every event has its tag; the base has not)
    return framed(name, data, f"{answer_id}-{event.seq}")


def framed(event: str, data: str, place: str | None = None) -> bytes:
    """Encode an event of JSON `data`, with `place` as its `id`."""
    if not data.isascii():
        data = data.translate(LINE_BREAKS)
    end = "" if place is None else f"id: {place}\n"
    return f"event: {event}\ndata: {data}\n{end}\n".encode()
