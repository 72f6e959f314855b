"""Connections to Qdrant over REST, over gRPC and in this process: API key, certificates, and the
mapping of the client's errors to ours."""

from __future__ import annotations

import ipaddress
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import structlog

from service.core.connections import reason_of, tls_context
from service.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
    RevelatorError,
    StoreError,
    StoreLost,
)
from service.core.settings.urls import address_of, without

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient


SETTING: Final = "retrieval.ca_files"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The credentials and certificates for a server. Without `key`, the password of the URL is the
    key."""

    url: str = field(repr=False)
    key: str = field(default="", repr=False)
    ca_files: Sequence[Path] = ()

    @property
    def _key(self) -> str:
        return self.key or address_of(self.url).password

    def client(self, module: Any, **options: Any) -> AsyncQdrantClient:
        """Create a client of `module` (qdrant_client), for REST and gRPC. Raises ConfigurationError
        if `ca_files` contain no certificates, and ValueError for an invalid URL."""
        url = address_of(self.url).url
        if context := tls_context(self.ca_files, SETTING):
            import certifi  # noqa: PLC0415 (a requirement of qdrant-client)

            authorities = [Path(certifi.where()), *self.ca_files]
            options["verify"] = context
            options["grpc_options"] = {
                **options.get("grpc_options", {}),
                "root_certificates": b"\n".join(file.read_bytes() for file in authorities),
            }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the client warns about the same
            client: AsyncQdrantClient = module.AsyncQdrantClient(
                url=url, api_key=self._key or None, **options
            )
        return client

    def warn(self) -> None:
        """Warn if the key is sent over a connection that others can read."""
        url = address_of(self.url).url
        if self._key and not _is_private(url):
            why = "Qdrant's API key is sent over unencrypted http; use https"
            _log.warning("key_unencrypted", server=url, reason=why)

    def hide(self, text: str) -> str:
        return without(text, (self._key,))


def _is_private(url: str) -> bool:
    """Return whether nobody else can read the connection: it uses TLS, or stays on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


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
    502: (BackendUnavailable, "is not available (502): {reason}"),
    503: (BackendUnavailable, "is not available (503): {reason}"),
    504: (BackendUnavailable, "is not available (504): {reason}"),
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
LIMITED: Final = "Limit exceeded"  # refused by strict mode, which names the limit
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
    if status == 400 and LIMITED in reason:
        return StoreError(
            f"{where} does not allow this request: {reason}; this is a limit of its strict mode: "
            "raise it for the collection there"
        )
    kind, text = ANSWERS.get(
        401 if status == 403 else status, (RetrievalFailure, "failed: {reason}")
    )
    return kind(f"{where} {text.format(reason=reason)}")


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
    return _of_the_engine_here(error), str(error)[:300]


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


def _of_the_engine_here(error: Exception) -> int:
    """Return our error for the in-process engine, which raises ValueError for an unknown collection
    and for a wrong dimension."""
    if not isinstance(error, ValueError | KeyError):
        return 500
    return 404 if "not found" in str(error) else 400
