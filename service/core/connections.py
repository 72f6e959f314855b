"""Connections to HTTP servers that are kept between calls, and calls that meet a closed one.

A server closes a connection that was idle for its keep-alive time: 5 s in uvicorn (and thus vLLM)
and in llama.cpp's server. A call may be on its way by then, and ends without a reply through no
fault of anybody's. A client may send it again where that is safe (RFC 9110, 9.2.2; RFC 9112,
9.3.1). Every call made here is: it computes, and changes nothing.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp

KEPT_S: Final = 3.0  # below what servers keep, and what a busy event loop is late by
MOST_AT_ONCE: Final = 100


class Connections:
    """A pool of connections, created in the caller's event loop.

    If a connection closes before its reply begins, the call is repeated on a new connection,
    because the server may have closed all idle connections at once; `on_resent` is notified.
    `limit` is the maximum number of connections, 0 for no limit.
    """

    def __init__(
        self,
        *,
        timeout: aiohttp.ClientTimeout,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        limit: int = MOST_AT_ONCE,
        on_resent: Callable[[], None] | None = None,
    ) -> None:
        self._timeout, self._headers = timeout, headers
        self._tls, self._limit = tls or True, limit
        self._on_resent = on_resent
        self._kept = self._session(keepalive_timeout=KEPT_S)
        self._fresh: aiohttp.ClientSession | None = None
        self._closed = False

    async def request(self, method: str, url: Any, **fields: Any) -> aiohttp.ClientResponse:
        """Return the reply with its body still to be read. `fields` are those of aiohttp, `data` is
        in bytes.

        Raises the errors of aiohttp, and RuntimeError after closing.
        """
        try:
            return await self._kept.request(method, url, **fields)
        except aiohttp.ClientConnectionError as error:
            if self._closed or not _was_closed(error):
                raise
        if self._on_resent is not None:
            self._on_resent()
        if self._fresh is None:
            self._fresh = self._session(force_close=True)
        return await self._fresh.request(method, url, **fields)

    async def aclose(self) -> None:
        """Close all connections, which aborts calls in progress. A second call does nothing."""
        self._closed = True
        await self._kept.close()
        if self._fresh is not None:
            await self._fresh.close()

    def _session(self, **keeping: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            headers=self._headers,
            timeout=self._timeout,
            connector=aiohttp.TCPConnector(limit=self._limit, ssl=self._tls, **keeping),
            cookie_jar=aiohttp.DummyCookieJar(),
        )


def _was_closed(error: aiohttp.ClientConnectionError) -> bool:
    """Whether a connection ended before a reply began, rather than never was, or was silent."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ServerTimeoutError):
        return False
    # else, aiohttp tells by what had come of a reply's head
    return not isinstance(error, aiohttp.ServerDisconnectedError) or isinstance(error.message, str)
