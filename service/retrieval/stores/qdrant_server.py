"""One Qdrant cluster: its client, over gRPC if the server offers it and over REST otherwise.

The configured URL is the REST server. gRPC is used once its port is proved to be the same instance,
so that nothing is written to another server that listens on that port. The proof is the peer id,
which an instance generates at its first start and keeps in its storage; both protocols report it
for any collection. In a cluster the two ports may reach two peers; each reports the other peers
that hold shards. A server without collections proves nothing yet and is written to over REST.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import math
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import structlog

from service.core.concurrency import retrieve
from service.core.connections import reason_of, tls_context
from service.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
    RevelatorError,
    StoreError,
    StoreLost,
)
from service.core.settings.urls import address_of, shown, without

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


LEAST_VERSION: Final = (1, 16)  # older ones are not tested
CHANNEL: Final = {
    # gRPC's own pauses between attempts to connect grow to two minutes.
    "grpc.initial_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": 1000,
    "grpc.min_reconnect_backoff_ms": 2000,  # milliseconds that one attempt may take
}

# absent: no gRPC server there; unproven: nothing to compare yet, or the key may not compare.
Grpc = Literal["same", "other", "absent", "unproven"]


async def check_version(rest: AsyncQdrantClient, place: str) -> None:
    """Raise ConfigurationError if the server is too old."""
    version = (await rest.info()).version
    if not is_supported(version):
        least = ".".join(map(str, LEAST_VERSION))
        raise ConfigurationError(
            f"Qdrant at {place} is version {version}; {least} or newer is needed. Upgrade the "
            "server, or unset retrieval.qdrant_url to keep the vectors in this process"
        )


def is_supported(version: str) -> bool:
    """Return whether a version such as `1.19.0` or `1.20.0-dev` is new enough; True if it has no
    numbers."""
    numbers = version.split("-", maxsplit=1)[0].split(".")[:2]
    if not all(number.isdecimal() for number in numbers):
        return True
    return tuple(map(int, numbers)) >= LEAST_VERSION


async def compare(rest: AsyncQdrantClient, grpc: AsyncQdrantClient) -> Grpc:
    """Return whether two clients reach one instance or cluster. Raises what `rest` raises."""
    held = (await rest.get_collections()).collections
    if not held:
        return "unproven"
    own = await _unless_refused(rest, held[0].name)
    if own is None:
        return "unproven"
    try:
        other = await grpc.collection_cluster_info(held[0].name)
    except Exception as error:
        code = getattr(error, "code", None)
        name = getattr(code(), "name", "") if callable(code) else ""
        return "absent" if name in {"UNAVAILABLE", "DEADLINE_EXCEEDED"} else "other"
    return "same" if peers(own) & peers(other) else "other"


def peers(info: Any) -> set[int]:
    """Return the ids of the peer that answers and of those known to hold shards of the
    collection."""
    return {info.peer_id, *(shard.peer_id for shard in info.remote_shards)}


async def _unless_refused(client: AsyncQdrantClient, name: str) -> Any:
    """Return None if the key does not allow the request, or the collection has just been
    deleted."""
    try:
        return await client.collection_cluster_info(name)
    except Exception as error:
        if getattr(error, "status_code", None) in {401, 403, 404}:
            return None
        raise


Answer = TypeVar("Answer")

LOOK_S = 1.0  # seconds that one check of version and ports may take
LOOK_AGAIN_S = 5.0  # seconds between two checks, until gRPC is used


_ELSEWHERE = (
    "another server responds at retrieval.qdrant_grpc_port; REST is used instead. Set it to the "
    "gRPC port of retrieval.qdrant_url, or to 0 for REST only"
)


_WHY_REST: dict[Grpc, str] = {
    "other": "another server responds at retrieval.qdrant_grpc_port",
    "absent": "no gRPC server responds at retrieval.qdrant_grpc_port",
    "unproven": "gRPC is used after a collection has proved that both ports belong to one server",
    "same": "gRPC is used from the next call on",
}


class QdrantServer:
    """Connects at its first use; each call may take `timeout_s`, in whole seconds.

    gRPC is used once `grpc_port` is proved to be the same server as `url`, and REST until then.
    None means REST's port plus one; 0 means REST only. `url` may contain an API key in place of a
    password if no `key` is given; no message repeats it. The URL `:memory:` selects qdrant-client's
    in-process engine, for tests.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        grpc_port: int | None = None,
        *,
        key: str = "",
        ca_files: Sequence[Path] = (),
    ) -> None:
        self._access = ServerAccess(url, key, ca_files)
        self._grpc_port = grpc_port
        self._timeout_s = math.ceil(timeout_s)
        self.place = shown(url)
        self._making: asyncio.Task[None] | None = None
        self._client: AsyncQdrantClient | None = None  # uses the chosen protocol
        self._rest: AsyncQdrantClient | None = None
        self._grpc: AsyncQdrantClient | None = None
        self._settled = False  # nothing is left to check
        self._looking: asyncio.Task[None] | None = None
        self._looked: float | None = None
        self._refusal: ConfigurationError | None = None
        self._relation: Grpc | None = None

    @property
    def protocol(self) -> str:
        """The protocol in use: `gRPC` or `REST`."""
        return "gRPC" if self._client is not None and self._client is self._grpc else "REST"

    async def call(self, request: Callable[[AsyncQdrantClient], Awaitable[Answer]]) -> Answer:
        """Send a request. Raises ConfigurationError, StoreError or RetrievalFailure, with their
        cause."""
        client = await self.connect()
        try:
            return await request(client)
        except Exception as error:
            raise self._failure(error) from error

    async def spoken(self) -> str:
        """Return the protocol in use, and why it is not gRPC. Raises as `connect` does, and
        BackendUnavailable if the server does not answer."""
        await self.look()
        await self.call(lambda client: client.get_collections())
        if self.protocol == "gRPC":
            return "gRPC is used"
        if self._grpc is None:
            return "REST is used"
        return f"REST is used; {_WHY_REST[self._relation or 'unproven']}"

    async def aclose(self) -> None:
        if self._making is not None:
            await asyncio.wait({self._making})
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        for client in {self._rest, self._grpc} - {None}:
            assert client is not None
            await client.close()
        self._client = self._rest = self._grpc = None
        self._settled = False

    async def connect(self) -> AsyncQdrantClient:
        """Return the client to use. The first caller waits for a check of the server, for `LOOK_S`
        seconds at most; later checks delay nobody. Raises ConfigurationError for a server that is
        too old."""
        if self._client is None:
            await self._make()
        if not self._settled and (self._looked is None or self._is_due(self._looked)):
            await self._look(wait=self._looked is None)
        if self._refusal is not None:
            raise self._refusal
        assert self._client is not None
        return self._client

    async def look(self) -> None:
        """Check the server now, unless gRPC is in use: before and after a collection is created,
        since an empty server proves nothing. Raises as `connect` does."""
        if self._client is None:
            await self._make()
        if not self._settled:
            await self._look(wait=True)
        if self._refusal is not None:
            raise self._refusal

    def _is_due(self, looked: float) -> bool:
        return self._looking is None and time.monotonic() - looked >= LOOK_AGAIN_S

    async def _look(self, wait: bool) -> None:
        """Check in a separate task, so that a cancelled caller does not end it."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_once())
        if wait:
            await asyncio.wait({self._looking}, timeout=LOOK_S)

    async def _look_once(self) -> None:
        try:
            with anyio.move_on_after(LOOK_S):
                await self._examine()
        except Exception as error:  # the next call to the server fails too, and reports it
            _log.debug("qdrant check failed", place=self.place, reason=str(error)[:300])
        finally:
            self._looked, self._looking = time.monotonic(), None

    async def _examine(self) -> None:
        if self._rest is None:
            return
        try:
            await check_version(self._rest, self.place)
        except ConfigurationError as error:
            self._refusal = error
            return
        self._refusal = None
        if self._grpc is None:
            self._settled = True
            return
        relation = await compare(self._rest, self._grpc)
        if relation == "same":
            self._client, self._settled = self._grpc, True
        elif relation == "other" and relation != self._relation:
            _log.warning(
                "qdrant gRPC port belongs to another server", place=self.place, reason=_ELSEWHERE
            )
        self._relation = relation

    async def _make(self) -> None:
        """Create the clients in a separate task, because a cancelled caller would lose them."""
        if self._making is None:
            self._making = asyncio.create_task(self._make_clients())
            self._making.add_done_callback(retrieve)
        await asyncio.shield(self._making)

    async def _make_clients(self) -> None:
        """Create the clients in a worker thread: importing qdrant_client takes 0.6 s, and its
        clients read files."""
        try:
            self._rest, self._grpc = await anyio.to_thread.run_sync(self._open)
        except ValueError as error:
            raise ConfigurationError(
                f"retrieval.qdrant_url: {self.place} is not a URL: {error}"
            ) from error
        finally:
            self._making = None
        self._client = self._rest

    def _open(self) -> tuple[AsyncQdrantClient, AsyncQdrantClient | None]:
        """Create clients for REST and, if a port is to be tried, for gRPC."""
        module = importlib.import_module("qdrant_client")
        if self.place == ":memory:":
            self._settled = True
            return module.AsyncQdrantClient(":memory:"), None
        parts = urlsplit(self.place)
        port = parts.port or (443 if parts.scheme == "https" else 6333)
        grpc_port = port + 1 if self._grpc_port is None else self._grpc_port
        options = {
            "port": port,
            "timeout": self._timeout_s,
            "check_compatibility": False,  # the client would warn on standard error
        }
        self._access.warn()
        rest = self._access.client(module, **options)
        if not grpc_port:
            return rest, None
        return rest, self._access.client(
            module,
            **options,
            grpc_port=grpc_port,
            prefer_grpc=True,
            grpc_options=dict(CHANNEL),
        )

    def _failure(self, error: Exception) -> RevelatorError:
        made = failure(error, f"Qdrant at {self.place}", self._timeout_s)
        return type(made)(self._access.hide(made.detail))
