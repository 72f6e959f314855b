"""One Qdrant cluster: its client, over gRPC if its port is set and over REST otherwise."""

from __future__ import annotations

import math
import re
import threading
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import structlog
from anyio import to_thread

from service.core.connections import reason_of, tls_context, trusted_files
from service.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
    RevelatorError,
    StoreError,
    StoreLost,
)
from service.core.settings.urls import address_of, is_loopback, shown, without

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient

_log = structlog.get_logger(__name__)


# HTTP status, or the equivalent of a gRPC code, to our error. Any other: RetrievalFailure.
ANSWERS: Final[dict[int, tuple[type[RevelatorError], str]]] = {
    400: (
        StoreError,
        "rejected the request: {reason}; if the collection was created by another application, "
        "or with another embedding model, delete it (revelator collections delete NAME) and "
        "ingest it again",
    ),
    401: (
        ConfigurationError,
        "rejected the credentials: {reason}; check retrieval.qdrant_key (Qdrant's API key)",
    ),
    404: (
        StoreLost,
        "has lost a collection: {reason}; if retrieval.qdrant_url is the address of your Qdrant, "
        "revelator check --collection NAME --repair rebuilds it",
    ),
    408: (BackendUnavailable, "exceeded its own time limit (408): {reason}"),
    429: (BackendUnavailable, "is overloaded (429): {reason}; try again later"),
    **dict.fromkeys((502, 503, 504), (BackendUnavailable, "is not available ({status}): {reason}")),
    507: (
        StoreError,
        "has no space left for writing: {reason}; free or add disk space, then run the same "
        "command again",
    ),
}
_GRPC: Final = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 401,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
}
UNREACHED: Final = {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
LIMITED: Final = ("Limit exceeded", "limit reached")  # what strict mode says, with the limit
FULL: Final = "No space left"  # over gRPC, a full disk has the code of too many requests


def failure(error: Exception, where: str, timeout_s: float) -> RevelatorError:
    """Translate an error of qdrant-client; `where` names the server."""
    status, reason = status_and_reason(error)
    if status is None:
        what = (
            f"cannot be reached: {reason}" if reason else f"did not respond within {timeout_s:g} s"
        )
        return BackendUnavailable(
            f"{where} {what}; check that it is running and that retrieval.qdrant_url is correct"
        )
    if status == 400 and any(words in reason for words in LIMITED):
        return StoreError(
            f"{where} does not allow this request: {reason}; this is a limit of its strict mode: "
            "raise it for the collection there"
        )
    status = 401 if status == 403 else status
    kind, text = ANSWERS.get(status, (RetrievalFailure, "failed: {reason}"))
    return kind(f"{where} {text.format(status=status, reason=reason)}")


def status_and_reason(error: Exception) -> tuple[int | None, str]:
    """Return the HTTP status, None if there was no response, and the reason, "" if only time ran
    out."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        body = getattr(error, "content", b"")
        return status, body.decode(errors="replace")[:300]
    code = getattr(error, "code", None)
    if callable(code):  # grpc.aio.AioRpcError
        name = getattr(code(), "name", "")
        reason = str(getattr(error, "details", str)())[:300] or name
        if name in UNREACHED:
            return None, reason if name == "UNAVAILABLE" else ""
        return 507 if FULL in reason else _GRPC.get(name, 500), reason
    if hasattr(error, "retry_after_s"):  # ResourceExhaustedResponse
        return 429, str(error)[:300]
    source = getattr(error, "source", None)
    if source is not None:  # ResponseHandlingException: no response, or one that cannot be parsed
        return None, _connecting(source)
    return 500, str(error)[:300]


def _connecting(error: BaseException) -> str:
    """Return why a connection failed, which httpx keeps only in the causes; "" for a timeout."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TimeoutError):
            return ""
        if isinstance(cause, OSError) and cause.errno is not None:
            return reason_of(cause)
        cause = cause.__cause__ or cause.__context__
    return str(error)[:300] or type(error).__name__


LEAST_VERSION: Final = (1, 16)  # older ones are not tested
CHANNEL: Final = {
    # gRPC's own pauses between attempts to connect grow to two minutes.
    "grpc.initial_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": 1000,
    "grpc.min_reconnect_backoff_ms": 2000,  # milliseconds that one attempt may take
}


Answer = TypeVar("Answer")


class QdrantServer:
    """Connects at its first use; each call may take `timeout_s`, in whole seconds.

    Calls go over gRPC if `grpc_port` is given, else over REST. `url` may contain an API key in
    place of a password if no `key` is given; no message repeats it.
    """

    def __init__(
        self, url: str, timeout_s: float, grpc_port: int | None = None, *, key: str = ""
    ) -> None:
        self._address = address_of(url)
        self._key = key or self._address.password
        self._grpc_port = grpc_port
        self._timeout_s = math.ceil(timeout_s)
        self.place = shown(url)
        self._client: AsyncQdrantClient | None = None
        self._making = threading.Lock()

    async def call(self, request: Callable[[AsyncQdrantClient], Awaitable[Answer]]) -> Answer:
        """Send a request. Raises ConfigurationError, StoreError or RetrievalFailure, with their
        cause."""
        client = self._client or await self.connect()
        try:
            return await request(client)
        except Exception as error:
            made = failure(error, f"Qdrant at {self.place}", self._timeout_s)
            raise type(made)(without(made.detail, (self._key,))) from error

    async def check(self) -> str:
        """Return the server's version and the protocol in use. Raises as `call` does, and
        ConfigurationError for a server that is too old."""
        version = (await self.call(lambda client: client.info())).version
        numbers = re.match(r"(\d+)\.(\d+)", version)  # of `1.20.0-dev`, too
        if numbers and tuple(map(int, numbers.groups())) < LEAST_VERSION:
            least = ".".join(map(str, LEAST_VERSION))
            raise ConfigurationError(
                f"Qdrant at {self.place} is version {version}; {least} or newer is needed. Upgrade "
                "the server, or unset retrieval.qdrant_url to keep the vectors in this process"
            )
        await self.call(lambda client: client.get_collections())
        return f"version {version}, {'gRPC' if self._grpc_port else 'REST'} is used"

    async def aclose(self) -> None:
        def taken() -> AsyncQdrantClient | None:
            with self._making:  # also one that is being made for a caller who has left
                client, self._client = self._client, None
            return client

        if client := await to_thread.run_sync(taken):
            await client.close()

    async def connect(self) -> AsyncQdrantClient:
        """Return the client, which is created in a worker thread: importing qdrant_client takes
        0.6 s, and its clients read files. Raises ConfigurationError."""

        def made() -> AsyncQdrantClient:
            with self._making:
                self._client = self._client or self._open()
                return self._client

        try:
            return await to_thread.run_sync(made)
        except ValueError as error:
            raise ConfigurationError(
                f"retrieval.qdrant_url: {self.place} is not a URL: {error}"
            ) from error

    def _open(self) -> AsyncQdrantClient:
        """Create the client. Raises ConfigurationError if the files of authorities contain no
        certificates, and ValueError for an invalid URL."""
        from qdrant_client import AsyncQdrantClient  # noqa: PLC0415

        parts, url = urlsplit(self.place), self._address.url
        options: dict[str, Any] = {
            "port": parts.port or (443 if parts.scheme == "https" else 6333),
            "timeout": self._timeout_s,
            "check_compatibility": False,  # the client would warn on standard error
        }
        if self._grpc_port:
            options |= {"prefer_grpc": True, "grpc_port": self._grpc_port}
            options["grpc_options"] = dict(CHANNEL)
        if context := tls_context():
            import certifi  # noqa: PLC0415 (a requirement of qdrant-client)

            authorities = [Path(certifi.where()), *trusted_files()]
            roots = b"\n".join(file.read_bytes() for file in authorities)
            options["verify"] = context
            options["grpc_options"] = options.get("grpc_options", {}) | {"root_certificates": roots}
        if self._key and parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            why = "Qdrant's API key is sent over unencrypted http; use https"
            _log.warning("key_unencrypted", server=url, reason=why)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the client warns about the same
            return AsyncQdrantClient(url=url, api_key=self._key or None, **options)
