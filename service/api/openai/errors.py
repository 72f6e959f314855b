"""Errors in the form of OpenAI's API, with its statuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from service.api.bodies import JSON
from service.api.problems import (
    ClientGone,
    KeyRefused,
    answer_framework,
    disclosed,
    problem_headers,
    request_id,
)
from service.core.domain import Model, Problem
from service.core.errors import InvalidRequest, LoopUnavailable, RevelatorError
from service.strategies.pipeline import problem_of

PREFIX: Final = "urn:revelator:problem:"
# The statuses and names that clients of this API expect instead of ours.
STATUSES: Final = {InvalidRequest.slug: 400, LoopUnavailable.slug: 400, KeyRefused.slug: 401}
CODES: Final = {
    "key-missing": "invalid_api_key",
    "key-refused": "invalid_api_key",
    "token-refused": "invalid_api_key",
    "rate-limited": "rate_limit_exceeded",
}
TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_FIELD: Final = re.compile(r"([a-z_]+(?:\.\w+)*): ")


class OpenAIErrorBody(Model):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Model):
    error: OpenAIErrorBody


class OpenAIRoute(APIRoute):
    """A route whose errors have the form of OpenAI's."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_in_their_form(request: Request) -> Response:
            try:
                return await handle(request)
            except RevelatorError as error:
                problem = problem_of(disclosed(error, request), request_id(request))
                return error_response(problem, error.retry_after)
            except ClientDisconnect:
                gone = ClientGone("The client disconnected before its body was complete.")
                return error_response(problem_of(gone, request_id(request)))

        return handle_in_their_form


async def answer_missing(request: Request, error: Exception) -> Response:
    """Answer for the router that there is no such path or method."""
    response = await answer_framework(request, error)
    if not request.url.path.startswith("/v1/"):
        return response
    problem = Problem.model_validate_json(bytes(response.body))
    answer = error_response(problem)
    answer.headers.update({k: v for k, v in response.headers.items() if k == "allow"})
    return answer


def error_response(problem: Problem, retry_after: int | None = None) -> Response:
    """Return a problem as a response of OpenAI's API."""
    status = status_of(problem)
    headers = problem_headers(problem, status, retry_after)
    return Response(error_body(problem).model_dump_json(), status, headers, JSON)


def status_of(problem: Problem) -> int:
    return STATUSES.get(_slug(problem), problem.status)


def error_body(problem: Problem) -> OpenAIError:
    """Return the body: `message` is the problem's detail, `param` the field at its beginning, if
    there is one.
    """
    status, slug = status_of(problem), _slug(problem)
    default = (
        "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    )
    field = _FIELD.match(problem.detail) if status == HTTPStatus.BAD_REQUEST else None
    body = OpenAIErrorBody(
        message=problem.detail,
        type=TYPES.get(status, default),
        param=field[1] if field else None,
        code=CODES.get(slug, slug.replace("-", "_")),
    )
    return OpenAIError(error=body)


def _slug(problem: Problem) -> str:
    return problem.type.removeprefix(PREFIX)


def documented_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for OpenAPI."""
    return {
        status: {"description": HTTPStatus(status).phrase, "model": OpenAIError}
        for status in statuses
    }
