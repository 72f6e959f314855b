"""Requests from the command line to the server that owns a data directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from service.core.connections import open_session, reason_of
from service.core.errors import ConfigurationError, InvalidRequest, StoreError
from service.core.settings import Settings
from service.core.settings.urls import address_of, authorization, shown

if TYPE_CHECKING:
    import aiohttp

JSON: Final = "application/json"
ANOTHER: Final = (
    "this is not a Revelator server; give its address without a path, such as http://127.0.0.1:8000"
)
_NO_SUCH_PATH: Final = {404, 405}
AGAIN: Final = "run the same command again, which continues after what is indexed"


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
    """Return the decoded response. Raises InvalidRequest, ConfigurationError or StoreError with the
    server's own message if it refuses."""
    headers = {"content-type": kind}
    async with session.request(method, address_of(url).url, data=body, headers=headers) as response:
        content = await response.read()
        if response.status < 400:
            return _decoded(content, url)
        said = f"{method} {shown(url)}: {response.status}: {refusal(content, response.status)}"
        if response.status in {401, 403}:
            raise ConfigurationError(f"{said}; set server.keys to a key of that server")
        if response.status < 500:
            raise InvalidRequest(said)
        raise StoreError(f"{said}; {again}")


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
