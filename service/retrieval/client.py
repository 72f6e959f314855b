"""Requests from the command line to the server that owns a data directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from service.core.connections import open_session
from service.core.errors import ConfigurationError, InvalidRequest, StoreError
from service.core.settings import Settings
from service.core.settings.urls import address_of, authorization, shown

if TYPE_CHECKING:
    import aiohttp

JSON: Final = "application/json"
AGAIN: Final = "run the same command again, which continues after what is indexed"


@asynccontextmanager
async def session_with(
    url: str, settings: Settings, timeout_s: float, again: str = AGAIN
) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session with the settings' key. Raises StoreError if the server cannot be reached;
    `again` is its advice."""
    import aiohttp  # noqa: PLC0415

    keys = settings.server.keys
    headers = authorization(url, keys[0] if keys else None)
    try:
        async with open_session(headers=headers, total_s=timeout_s) as session:
            yield session
    except (aiohttp.ClientError, TimeoutError) as error:
        raise StoreError(
            f"the server at {shown(url)} did not respond: {error or type(error).__name__}; {again}"
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
            return orjson.loads(content) if content else None
        detail = _detail(content)
        said = f"{method} {shown(url)}: {response.status}: {detail}"
        if response.status in {401, 403}:
            raise ConfigurationError(f"{said}; set server.keys to a key of that server")
        if response.status < 500:
            raise InvalidRequest(said)
        raise StoreError(f"{said}; {again}")


def _detail(content: bytes) -> str:
    try:
        return str(orjson.loads(content)["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return content[:200].decode(errors="replace")
