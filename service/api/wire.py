"""What goes over HTTP: bodies that are read, problems (RFC 9457) and event streams that are sent.

The HTTP edge adds these errors to the tree of `service.core.errors`:

RevelatorError
├── MalformedRequest      400 malformed-request       not valid JSON, or not UTF-8
├── KeyMissing            401 key-missing             the server requires a key
├── KeyRefused            403 key-refused             the key is not one of the server's
├── CrossSite             403 cross-site              a browser asks for a page of another site
├── TokenRefused          401 token-refused           the bearer token is not valid
├── IssuerUnavailable     503 issuer-unavailable      the keys that sign tokens cannot be read
├── NotAllowed            403 not-allowed             the key lacks the right, or the collection
├── RateLimited           429 rate-limited            the key has used up its requests a minute
├── AnswerElsewhere       409 answer-elsewhere        another gateway has the events of an answer
├── AnswerGone            410 answer-gone             the events of an answer are no longer kept
├── KeyReused             422 idempotency-key-reused  the key was sent with another request
├── RequestTimeout        408 request-timeout         the body did not arrive in time
├── BodyTooLarge          413 body-too-large          the body exceeds the size limit
├── UnsupportedMediaType  415 unsupported-media-type  a content type this path does not read
├── NotReady              503 not-ready               `/readyz`, `/startupz`: something is missing
└── ClientGone            499 client-gone             the client has disconnected
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.message import Message as Header
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from service.core.concurrency import running
from service.core.domain import Problem
from service.core.errors import InvalidRequest, NotFound, RevelatorError, UnknownCollection
from service.core.progress import Follow
from service.core.validation import explain
from service.strategies.pipeline import problem_of

log = structlog.get_logger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
REQUEST_ID: Final = "X-Request-ID"
RETRY_AFTER_S: Final = 5


class MalformedRequest(RevelatorError):
    slug, title, status = "malformed-request", "The request cannot be parsed", 400


class KeyMissing(RevelatorError):
    slug, title, status = "key-missing", "An API key is required", 401


class KeyRefused(RevelatorError):
    slug, title, status = "key-refused", "The API key is not valid", 403


class RequestTimeout(RevelatorError):
    slug, title, status = "request-timeout", "The request body did not arrive in time", 408


class BodyTooLarge(RevelatorError):
    slug, title, status = "body-too-large", "The request body is too large", 413


class UnsupportedMediaType(RevelatorError):
    slug, title, status = "unsupported-media-type", "The content type is not supported", 415


class NotReady(RevelatorError):
    slug, title, status = "not-ready", "The service is not ready", 503
    retry_after = 1


class ClientGone(RevelatorError):
    slug, title, status = "client-gone", "The client disconnected", 499


class ReconnectRefused(Exception):
    """A reconnecting client has received every event already. The response 204 stops an
    EventSource.
    """


def add_handlers(app: FastAPI) -> None:
    """Turn every error of `app`, including the framework's own, into a problem."""
    app.add_exception_handler(RevelatorError, answer_error)
    app.add_exception_handler(RequestValidationError, answer_validation)
    app.add_exception_handler(HTTPException, answer_framework)
    app.add_exception_handler(ClientDisconnect, answer_gone)
    app.add_exception_handler(ReconnectRefused, answer_reconnect)
    app.add_exception_handler(Exception, answer_unexpected)


def request_id(request: Request) -> str:
    """Return the id that `RequestIds` assigned to the request."""
    return getattr(request.state, "request_id", None) or secrets.token_hex(8)


def problem_response(
    problem: Problem, retry_after: int | None = None, headers: dict[str, str] | None = None
) -> Response:
    """Return the problem as a response."""
    headers = dict(headers or {}) | problem_headers(problem, problem.status, retry_after)
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
    shown_error = disclosed(error, request)
    return problem_response(problem_of(shown_error, request_id(request)), error.retry_after)


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
    """Handle 404 and 405 of the router, and 400 of the body parser."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    if status == HTTPStatus.NOT_FOUND:
        return await answer_error(
            request,
            NotFound(f"The path {request.url.path} does not exist. See /docs for all paths."),
        )
    problem = Problem(
        type=f"urn:revelator:problem:{status.phrase.lower().replace(' ', '-')}",
        title=status.phrase,
        status=status,
        detail=str(error.detail),
        request_id=request_id(request),
    )
    return problem_response(problem, headers=dict(error.headers or {}))


async def answer_unexpected(request: Request, error: Exception) -> Response:
    log.error("request failed", request_id=request_id(request), exc_info=error)
    internal = RevelatorError("An unexpected error occurred. It was logged under this request_id.")
    return await answer_error(request, internal)


async def answer_gone(request: Request, _: Exception) -> Response:
    return await answer_error(
        request, ClientGone("The client disconnected before its body was complete.")
    )


async def answer_reconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=HTTPStatus.NO_CONTENT)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for OpenAPI, with a Problem under each status."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": _phrase(status), "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase


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


def body_schema(model: str, *, required: bool = True) -> dict[str, Any]:
    """Return the OpenAPI description of a JSON body that a dependency reads. `model` names its
    component schema."""
    schema = {"$ref": f"#/components/schemas/{model}"}
    return {"requestBody": {"required": required, "content": {JSON: {"schema": schema}}}}


def stream_content(description: str) -> dict[str, Any]:
    """Return the OpenAPI description of a response of Server-Sent Events."""
    return {EVENT_STREAM: {"schema": {"type": "string", "description": description}}}


def content_type(request: Request, *allowed: str) -> str:
    """Return the media type. Raises UnsupportedMediaType (415) unless it is allowed, in UTF-8, and
    its parameters can be read."""
    header = Header()
    header["content-type"] = request.headers.get("content-type", "")
    kind = header.get_content_type() if header["content-type"] else "nothing"
    try:
        charset = header.get_content_charset() or "utf-8"
    except ValueError:  # such as a NUL in the name of an encoding
        raise UnsupportedMediaType(
            "The parameters of the header Content-Type cannot be read. Send the body as "
            f"{' or '.join(allowed)}, without parameters."
        ) from None
    if kind not in allowed:
        raise UnsupportedMediaType(f"Send the body as {' or '.join(allowed)}, not as {kind[:80]}.")
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaType(f"Send the body in UTF-8, not in {charset[:80]}.")
    return kind


async def read_json(request: Request) -> Any:
    """Parse a JSON body of at most MAX_BODY_BYTES.

    Raises UnsupportedMediaType (415), BodyTooLarge (413), RequestTimeout (408) or MalformedRequest
    (400, for invalid JSON or UTF-8, or for deep nesting).
    """
    content_type(request, JSON)
    try:
        return orjson.loads(await read_body(request))
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"The body is not valid JSON in UTF-8: {error.msg}") from None


async def read_body(request: Request) -> bytes:
    """Read the body. Raises BodyTooLarge as soon as the size is exceeded, RequestTimeout after 30
    s."""
    too_large = BodyTooLarge(f"The body exceeds the limit of {MAX_BODY_BYTES:,} bytes.")
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
        raise RequestTimeout(f"The body was not complete after {BODY_TIMEOUT_S:.0f} s.") from None
    return b"".join(chunks)


async def decoded(request: Request) -> AsyncIterator[bytes]:
    """Yield the pieces of the body, decompressed.

    Raises UnsupportedMediaType (415) for a coding that is not read, MalformedRequest (400) for a
    body that is not in its coding, and BodyTooLarge (413) for more than MOST_DECODED bytes.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding == "identity":
        async for chunk in request.stream():
            yield chunk
        return
    if coding not in CODINGS:
        raise UnsupportedMediaType(
            f"Send the body as it is or in the coding {' or '.join(CODINGS)}, not {coding[:80]}."
        )
    decoder, size = CODINGS[coding](), 0
    broken = MalformedRequest(f"The body is not complete, valid {coding}.")
    async for chunk in request.stream():
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
                raise BodyTooLarge(f"The body has more than {MOST_DECODED:,} bytes decompressed.")
            yield piece
            await asyncio.sleep(0)
    if not decoder.eof:
        raise broken


async def read_lines(request: Request, longest: int) -> AsyncIterator[bytes | None]:
    """Yield the body's lines without line ends, and None for a line longer than `longest` bytes.

    Holds at most one line and one chunk in memory. Raises RequestTimeout after 30 s without data.
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
    """Yield the pieces of the body, decompressed. Raises RequestTimeout after 30 s without data."""
    stream = decoded(request)
    while True:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise RequestTimeout(f"No data was received for {BODY_TIMEOUT_S:.0f} s.") from None
        if chunk is None:
            return
        yield chunk


TOLD_S: Final = 0.25  # seconds between two events that report the progress of long work
PAUSE_S: Final = 15.0  # seconds; proxies close connections without data after longer pauses
# Some clients end a line at these, too, and with it the field.
LINE_BREAKS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class EventStream(StreamingResponse):
    """Sends `events`, each encoded, as they arrive, and a comment after every `PAUSE_S` without
    one.
    """

    media_type = EVENT_STREAM

    def __init__(self, events: AsyncIterator[bytes], comment: str = "ping") -> None:
        # nginx would buffer events
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._comment = f": {comment}\n\n".encode()
        self._sent_at = 0.0

    async def stream_response(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time

        async def noted(message: Message) -> None:
            self._sent_at = clock()
            await send(message)

        self._sent_at = clock()
        pausing = asyncio.create_task(self._fill_pauses(noted))
        try:
            await super().stream_response(noted)
        finally:
            pausing.cancel()

    async def _fill_pauses(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            left = self._sent_at + PAUSE_S - clock()
            if left > 0:
                await asyncio.sleep(left)
            else:
                body = {"type": "http.response.body", "body": self._comment, "more_body": True}
                await send(body)


async def followed(
    work: Callable[[Follow], Awaitable[BaseModel]], request_id: str
) -> AsyncIterator[bytes]:
    """Run long work and yield its progress as events `progress`, then its result as `report`, or
    `error`. Closing the iterator cancels the work."""
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
                    yield framed("progress", orjson.dumps(sent).decode())
                await asyncio.wait([task], timeout=TOLD_S)
            yield framed("report", task.result().model_dump_json())
    except RevelatorError as error:
        yield framed("error", problem_of(error, request_id).model_dump_json())


def framed(event: str, data: str, place: str | None = None) -> bytes:
    """Encode an event of JSON `data`, with `place` as its `id`."""
    if not data.isascii():
        data = data.translate(LINE_BREAKS)
    end = "" if place is None else f"id: {place}\n"
    return f"event: {event}\ndata: {data}\n{end}\n".encode()
