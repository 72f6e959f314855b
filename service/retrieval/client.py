"""Requests from the command line to the server that owns a data directory, and what refusals of a
server mean."""

from __future__ import annotations

from collections.abc import AsyncIterator
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
from service.core.settings import Settings
from service.core.settings.urls import address_of, authorization, shown

if TYPE_CHECKING:
    import aiohttp

JSON: Final = "application/json"
ANOTHER: Final = (
    "this is not a Revelator server; give its address without a path, such as http://127.0.0.1:8000"
)
_NO_SUCH_PATH: Final = {404, 405}
# What to do about a refused key: one that is not known, one that may not do this.
_KEY_ADVICE: Final = "set server.keys to a key of that server"
_RIGHT_ADVICE: Final = (
    "use a key that may do this; the operator of that server grants rights and collections"
)
AGAIN: Final = "run the same command again, which continues after what is indexed"
# What a problem is here, by the end of its type. Others are known by their status.
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
    """Open a session with the settings' key. Raises StoreError if the server cannot be reached;
    `again` is its advice."""
    import aiohttp  # noqa: PLC0415

    headers = authorization(url, settings.server.own_key)
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
    """Return the decoded response. Raises as `refused` says if the server refuses."""
    headers = {"content-type": kind}
    async with session.request(method, address_of(url).url, data=body, headers=headers) as response:
        if response.status < 400:
            return _decoded(await response.read(), url)
        raise await refused(response, f"{method} {shown(url)}: {response.status}", again)


async def refused(response: aiohttp.ClientResponse, where: str, again: str = "") -> RevelatorError:
    """Return the error of a refusal, with the server's own message, after `where`.

    ConfigurationError for a key; Overloaded or Draining, with `retry_after`; NotFound and
    LoopUnavailable; EngineFailure for an answer that is not kept; else InvalidRequest, or from 500
    on StoreError, with the advice `again`.
    """
    content, status = await response.read(), response.status
    said = f"{where}: {refusal(content, status) or f'HTTP {status}'}"
    slug = _slug(content)
    if status in (401, 403):
        advice = _RIGHT_ADVICE if slug == "not-allowed" else _KEY_ADVICE
        return ConfigurationError(f"{said}; {advice}")
    kind = _PROBLEMS.get(slug)
    if kind is None:
        kind = InvalidRequest if status < 500 else StoreError
    error = kind(f"{said}; {again}" if again and kind is StoreError else said)
    wait = response.headers.get("Retry-After", "")
    error.retry_after = int(wait) if wait.isdecimal() else None
    return error


def _slug(content: bytes) -> str:
    try:
        return str(orjson.loads(content)["type"]).rpartition(":")[2]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""


def refusal(content: bytes, status: int) -> str:
    """Return what a server says in the body of a refusal; a path that it does not have shows that
    it is another service."""
    try:
        said = orjson.loads(content)
        if status not in _NO_SUCH_PATH or said["type"].startswith("urn:revelator:"):
            return str(said["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        pass
    return ANOTHER if status in _NO_SUCH_PATH else content[:200].decode(errors="replace")


def _decoded(content: bytes, url: str) -> Any:
    try:
        return orjson.loads(content) if content else None
    except orjson.JSONDecodeError:
        raise InvalidRequest(f"{shown(url)}: {ANOTHER}") from None
