"""The error body of every response: RFC 9457 problems with the request's id.

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

import secrets
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from service.core.domain import Problem
from service.core.errors import InvalidRequest, NotFound, RevelatorError, UnknownCollection
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
