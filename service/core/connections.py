"""HTTP connections that are reused between calls, and repetition of calls that meet a closed one.

A server closes idle connections after its keep-alive time: 5 s in uvicorn (and thus vLLM) and in
llama.cpp's server. A call that was just sent then ends without a reply, although nothing failed. A
client may repeat it if that is safe (RFC 9110, 9.2.2; RFC 9112, 9.3.1). It is for every call made
here, because they compute and change nothing.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from service.core.errors import ConfigurationError

if TYPE_CHECKING:
    import aiohttp

# seconds: below the keep-alive times of servers, less the delays of a busy event loop
KEPT_S: Final = 3.0
CONNECT_S: Final = 5.0  # seconds: a running host accepts at once
MOST_AT_ONCE: Final = 100

# The trace of a call to a server, as header fields (W3C Trace Context).
NO_TRACE: Final[Mapping[str, str]] = MappingProxyType({})
TRACE_FIELDS: Final = ("traceparent", "tracestate")
# of the calls that this task makes; none without a trace
OUTGOING: Final[ContextVar[Mapping[str, str]]] = ContextVar("trace_context", default=NO_TRACE)


def open_session(
    *,
    headers: Mapping[str, str] | None = None,
    total_s: float | None = None,
    connect_s: float = CONNECT_S,
    silence_s: float | None = None,
    limit: int = MOST_AT_ONCE,
    keep: bool = True,
    **options: Any,
) -> aiohttp.ClientSession:
    """Open an HTTP session in the caller's event loop. All of the service's sessions are made here.

    A call may take `total_s` in all, `connect_s` to be connected, and `silence_s` between two
    pieces of its response; None means no limit. `limit` is the maximum number of connections, 0
    for no limit; `keep` keeps them for the next call. `options` are those of aiohttp.
    """
    import aiohttp  # noqa: PLC0415

    keeping: dict[str, Any] = {"keepalive_timeout": KEPT_S} if keep else {"force_close": True}
    return aiohttp.ClientSession(
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=total_s, connect=connect_s, sock_read=silence_s),
        connector=aiohttp.TCPConnector(limit=limit, ssl=tls_context() or True, **keeping),
        cookie_jar=aiohttp.DummyCookieJar(),
        **options,
    )


_trusted: list[Path] = []


def trust(ca_files: Sequence[Path]) -> None:
    """Let the connections that this process opens from now on trust the authorities in these PEM
    files, besides the public ones. Raises ConfigurationError for a file without certificates.
    """
    _trusted[:] = ca_files
    tls_context()


def trusted_files() -> tuple[Path, ...]:
    """Return the files that `trust` was given."""
    return tuple(_trusted)


def tls_context() -> ssl.SSLContext | None:
    """Return a context that also trusts what `trust` was given, or None, a client's default."""
    if not _trusted:
        return None
    context = ssl.create_default_context()
    for file in _trusted:
        try:
            context.load_verify_locations(cafile=str(file))
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"ca_files: {file} does not hold certificates in PEM: {error}"
            ) from None
    return context


class Connections:
    """A pool of connections, opened by the first call in the caller's event loop.

    If a connection closes before its reply begins, the call is repeated on a new connection,
    because the server may have closed all idle connections at once; `on_resent` is notified.
    `options` are those of `open_session`.
    """

    def __init__(self, *, on_resent: Callable[[], None] | None = None, **options: Any) -> None:
        self._open = partial(open_session, **options)
        self._on_resent = on_resent
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._closed = False

    async def request(self, method: str, url: Any, **fields: Any) -> aiohttp.ClientResponse:
        """Return the reply, whose body is not read yet. `fields` are those of aiohttp, `data` is in
        bytes.

        Raises the errors of aiohttp, and RuntimeError after closing.
        """
        import aiohttp  # noqa: PLC0415

        if self._closed:
            raise RuntimeError("the connections are closed")
        self._kept = self._kept or self._open()
        try:
            return await self._kept.request(method, url, **fields)
        except aiohttp.ClientConnectionError as error:
            if self._closed or not _was_closed(error):
                raise
        if self._on_resent is not None:
            self._on_resent()
        self._fresh = self._fresh or self._open(keep=False)
        return await self._fresh.request(method, url, **fields)

    async def aclose(self) -> None:
        """Close all connections, which aborts calls in progress. A second call does nothing."""
        self._closed = True
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()


def reason_of(error: Exception) -> str:
    """Return in one line why a request failed, such as "Connection refused"."""
    reason = getattr(error, "strerror", None) or getattr(error, "message", None) or error
    text = (str(reason).splitlines() or [type(error).__name__])[0]
    if "Connect call failed" in text:  # asyncio's message, with the address
        numbers = re.findall(r"Errno (\d+)", f"Errno {getattr(error, 'errno', None)} {text}")
        return os.strerror(int(numbers[0])) if numbers else text
    return text[:100]


def _was_closed(error: aiohttp.ClientConnectionError) -> bool:
    """Whether a connection ended before the reply began, as opposed to never opened, or silent."""
    import aiohttp  # noqa: PLC0415

    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ServerTimeoutError):
        return False
    # for other errors, aiohttp shows it by the received part of the reply's head
    return not isinstance(error, aiohttp.ServerDisconnectedError) or isinstance(error.message, str)
