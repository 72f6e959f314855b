"""Requests from the command line to the server that owns a data directory, and the errors for its
refusals.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from service.core.connections import open_session, reason_of
from service.core.errors import (
    ConfigurationError,
    Draining,
    EngineFailure,
    InvalidRequest,
    LoopUnavailable,
    NotFound,
    Overloaded,
    RevelatorError,
    StoreError,
)
from service.core.progress import Follow
from service.core.settings import Settings
from service.core.settings.urls import address_of, authorization, shown

if TYPE_CHECKING:
    import aiohttp

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
ANOTHER: Final = (
    "this is not a Revelator server; give its address without a path, such as http://127.0.0.1:8000"
)
_NO_SUCH_PATH: Final = {404, 405, 501}  # the path, or the method, does not exist
# Advice for a refused key: an unknown one, and one without the right to do this.
_KEY_ADVICE: Final = "give one of that server's keys by --key or REVELATOR_KEY"
_RIGHT_ADVICE: Final = (
    "use a key that may do this; the operator of that server grants rights and collections"
)
AGAIN: Final = "run the same command again, which continues after what is indexed"
# Our errors for problems, by the end of their type. Others are mapped by their status.
_PROBLEMS: Final[dict[str, type[RevelatorError]]] = {
    **{error.slug: error for error in (LoopUnavailable, NotFound, Draining, Overloaded)},
    "rate-limited": Overloaded,
    "answer-gone": EngineFailure,
    "answer-elsewhere": EngineFailure,
}


@asynccontextmanager
async def session_with(
    url: str, settings: Settings, timeout_s: float, again: str = AGAIN
) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session with the settings' key. Raises StoreError, with the advice `again`, if the
    server cannot be reached.
    """
    import aiohttp  # noqa: PLC0415

    headers = authorization(url, settings.own_key)
    try:
        async with open_session(headers=headers, total_s=timeout_s) as session:
            yield session
    except (aiohttp.ClientError, TimeoutError) as error:
        raise StoreError(
            f"the server at {shown(url)} did not respond: {reason_of(error)}; check the address "
            f"and that the server runs (revelator serve), then {again}"
        ) from error


async def send(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    body: bytes | AsyncIterator[bytes] = b"",
    kind: str = JSON,
    again: str = AGAIN,
) -> Any:
    """Send a request and return the decoded response. Raises as `refusal_error` says if the
    server refuses it.
    """
    headers = {"content-type": kind}
    async with session.request(method, address_of(url).url, data=body, headers=headers) as response:
        if response.status < 400:
            return _decoded(await response.read(), url)
        raise await refusal_error(response, f"{method} {shown(url)}: {response.status}", again)


async def send_followed(
    session: aiohttp.ClientSession, method: str, url: str, follow: Follow
) -> Any:
    """Return the decoded response of long work, and call `follow` with its progress meanwhile. A
    server that does not stream progress returns the response alone. Raises as `send`.
    """
    headers, where = {"accept": EVENT_STREAM}, f"{method} {shown(url)}"
    async with session.request(method, address_of(url).url, headers=headers) as response:
        if response.status >= 400:
            raise await refusal_error(response, f"{where}: {response.status}", AGAIN)
        if response.content_type != EVENT_STREAM:
            return _decoded(await response.read(), url)
        async for fields in event_fields(response.content):
            content = fields.get("data", "{}").encode()
            body = orjson.loads(content)
            match fields.get("event"):
                case "progress":
                    follow(body["stage"], body["done"], body["total"])
                case "error":
                    raise _error_of(content, body["status"], where, AGAIN)
                case "report":
                    return body
    raise StoreError(f"{where}: the server ended the response before its end; {AGAIN}")


async def event_fields(lines: AsyncIterable[bytes]) -> AsyncIterator[dict[str, str]]:
    """Parse the lines of an event stream, and yield the fields of each event by their names."""
    fields: dict[str, str] = {}
    async for line in lines:
        text = line.decode().rstrip("\r\n")
        if text:  # a comment has an empty name
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
        else:
            yield fields
            fields = {}


async def refusal_error(
    response: aiohttp.ClientResponse, where: str, again: str = ""
) -> RevelatorError:
    """Return the error for a refusal, with the server's own message, after `where`.

    ConfigurationError for a key; Overloaded or Draining, with `retry_after`; NotFound and
    LoopUnavailable; EngineFailure for an answer that is not stored; else InvalidRequest, or
    StoreError for a status from 500 on, with the advice `again`.
    """
    error = _error_of(await response.read(), response.status, where, again)
    wait = response.headers.get("Retry-After", "")
    error.retry_after = int(wait) if wait.isdecimal() else None
    return error


def _error_of(content: bytes, status: int, where: str, again: str) -> RevelatorError:
    message = f"{where}: {refusal_message(content, status) or f'HTTP {status}'}"
    slug = _slug(content)
    if status in (401, 403):
        advice = _RIGHT_ADVICE if slug == "not-allowed" else _KEY_ADVICE
        return ConfigurationError(f"{message.removesuffix('.')}; {advice}")
    kind = _PROBLEMS.get(slug)
    if kind is None:
        kind = InvalidRequest if status < 500 else StoreError
    return kind(f"{message}; {again}" if again and kind is StoreError else message)


def _slug(content: bytes) -> str:
    try:
        return str(orjson.loads(content)["type"]).rpartition(":")[2]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""


def refusal_message(content: bytes, status: int) -> str:
    """Return the server's message in the body of a refusal. An unknown path shows that it is
    another service.
    """
    try:
        problem = orjson.loads(content)
        if status not in _NO_SUCH_PATH or problem["type"].startswith("urn:revelator:"):
            return str(problem["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        pass
    return ANOTHER if status in _NO_SUCH_PATH else content[:200].decode(errors="replace")


def _decoded(content: bytes, url: str) -> Any:
    try:
        return orjson.loads(content) if content else None
    except orjson.JSONDecodeError:
        raise InvalidRequest(f"{shown(url)}: {ANOTHER}") from None
