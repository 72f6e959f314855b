"""One Qdrant cluster: its client, gRPC where it is offered, and our errors for its own."""

from __future__ import annotations

import importlib
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from service.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
    RevelatorError,
    StoreError,
)

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient

Answer = TypeVar("Answer")

GRPC_PORT = 6334  # Qdrant's own
PROBE_S = 1.0

# HTTP status, or the one that a gRPC code stands for, to what it is to us. Others: a failure.
ANSWERS: dict[int, tuple[type[RevelatorError], str]] = {
    400: (
        StoreError,
        "refused the request: {reason}; if the collection there was made by something else, or "
        "with another embedding model, delete the collection and ingest it again",
    ),
    401: (
        ConfigurationError,
        "refused the credentials: {reason}; put the API key into retrieval.qdrant_url as "
        "https://:KEY@host:6333",
    ),
    404: (
        StoreError,
        "has no such collection: {reason}; delete the collection and ingest it again",
    ),
    429: (BackendUnavailable, "is overloaded (429): {reason}; try again later"),
    502: (BackendUnavailable, "is not to be had (502): {reason}"),
    503: (BackendUnavailable, "is not to be had (503): {reason}"),
    504: (BackendUnavailable, "is not to be had (504): {reason}"),
}
_GRPC = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 401,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
}


class QdrantServer:
    """The client connects at its first use; each call gets `timeout_s`, in whole seconds.

    gRPC is spoken where `grpc_port` can be connected to; 0: HTTP only.
    `url` may hold an API key in the place of a password, which no message repeats. The URL
    `:memory:` is qdrant-client's engine in this process, for tests.
    """

    def __init__(self, url: str, timeout_s: float, grpc_port: int = GRPC_PORT) -> None:
        self._url = url
        self._grpc_port = grpc_port
        self._timeout_s = math.ceil(timeout_s)
        self.place = _without_key(url)
        self._lock = anyio.Lock()
        self._client: AsyncQdrantClient | None = None

    async def call(self, request: Callable[[AsyncQdrantClient], Awaitable[Answer]]) -> Answer:
        """Raises ConfigurationError, StoreError and RetrievalFailure, with their cause."""
        client = self._client or await self.connect()
        try:
            return await request(client)
        except Exception as error:
            raise self._failure(error) from error

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def connect(self) -> AsyncQdrantClient:
        """Imports qdrant_client, which takes 0.6 s, in a worker thread."""
        async with self._lock:
            if self._client is None:
                module = await anyio.to_thread.run_sync(importlib.import_module, "qdrant_client")
                try:
                    self._client = await self._open(module)
                except ValueError as error:
                    raise ConfigurationError(
                        f"retrieval.qdrant_url: {self.place} is no URL: {error}"
                    ) from error
            client: AsyncQdrantClient = self._client
        return client

    async def _open(self, module: Any) -> AsyncQdrantClient:
        client: AsyncQdrantClient
        if self._url == ":memory:":
            client = module.AsyncQdrantClient(":memory:")
            return client
        parts = urlsplit(self._url)
        client = module.AsyncQdrantClient(
            url=self.place,
            port=parts.port or (443 if parts.scheme == "https" else 6333),
            api_key=parts.password,
            grpc_port=self._grpc_port,
            prefer_grpc=await _listens(parts.hostname or "", self._grpc_port),
            timeout=self._timeout_s,
            check_compatibility=False,  # it would block the event loop to ask the version
        )
        return client

    def _failure(self, error: Exception) -> RevelatorError:
        status, reason = _told(error)
        where = f"Qdrant at {self.place}"
        if status is None:
            return BackendUnavailable(
                f"{where} cannot be reached or did not answer in {self._timeout_s} s: {reason}; "
                "is it running, and is retrieval.qdrant_url right?"
            )
        kind, text = ANSWERS.get(
            401 if status == 403 else status, (RetrievalFailure, "failed: {reason}")
        )
        return kind(f"{where} {text.format(reason=reason)}")


def _told(error: Exception) -> tuple[int | None, str]:
    """HTTP status, None where there was no answer; and the reason. Knows both transports."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        body = getattr(error, "content", b"")
        return status, body.decode(errors="replace")[:300]
    code = getattr(error, "code", None)
    if callable(code):  # grpc.aio.AioRpcError
        name = getattr(code(), "name", "")
        reason = str(getattr(error, "details", str)())[:300] or name
        return (
            None if name in {"UNAVAILABLE", "DEADLINE_EXCEEDED"} else _GRPC.get(name, 500)
        ), reason
    if hasattr(error, "retry_after_s"):  # ResourceExhaustedResponse
        return 429, str(error)[:300]
    source = getattr(error, "source", None)
    if source is not None:  # ResponseHandlingException: nothing came, or nothing that can be read
        return None, str(source)[:300] or type(source).__name__
    # The engine in this process says these of an unknown collection, of a wrong dimension.
    return (400 if isinstance(error, ValueError | KeyError) else 500), str(error)[:300]


def _without_key(url: str) -> str:
    parts = urlsplit(url)
    if not parts.scheme:
        return url
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


async def _listens(host: str, port: int) -> bool:
    if not port:
        return False
    try:
        with anyio.fail_after(PROBE_S):
            stream = await anyio.connect_tcp(host, port)
            await stream.aclose()
    except (OSError, TimeoutError):
        return False
    return True
