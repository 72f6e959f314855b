"""One Elasticsearch cluster: its client, bulk writes, and the mapping of its errors to ours."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread

from service.core.concurrency import closing
from service.core.connections import reason_of, tls_context
from service.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
    RevelatorError,
    StoreError,
    StoreLost,
)
from service.core.settings.urls import address_of, basic, shown, without

if TYPE_CHECKING:
    from elasticsearch import AsyncElasticsearch

Answer = TypeVar("Answer")
# An item of a bulk request: the line of the action, and that of the document if it has one.
Action = tuple[bytes, bytes | None]

BULK_ACTIONS = 500
BULK_BYTES = 4_000_000
TRIES = 6  # for items that the cluster was too busy to accept
NO_SUCH_PATH = {404, 405}  # Elasticsearch sends these too, with its header
FIRST_PAUSE_S = 0.1  # doubles with every attempt


@dataclass(frozen=True, slots=True)
class Complaint:
    """An error that the cluster reports for a request or for one item of a bulk request."""

    status: int
    kind: str = ""
    reason: str = ""

    @property
    def blocked(self) -> bool:
        return self.kind == "cluster_block_exception" and self.status in {403, 429}

    @property
    def busy(self) -> bool:
        return self.status == 429 and not self.blocked


_MAPPING = {
    "document_parsing_exception", "mapper_parsing_exception", "strict_dynamic_mapping_exception",
    "illegal_argument_exception",
}  # fmt: skip

# The first rule that matches gives our error; {reason} is the cluster's own message.
ANSWERS: tuple[tuple[Callable[[Complaint], bool], type[RevelatorError], str], ...] = (
    (
        lambda c: c.blocked,
        StoreError,
        "blocks writing to its index: {reason}; free disk space or remove the block "
        "(index.blocks.*), then run the ingest again",
    ),
    (
        lambda c: c.status in {401, 403},
        ConfigurationError,
        "rejected the credentials ({status}): {reason}; check the user in "
        "retrieval.elasticsearch_url, and retrieval.elasticsearch_key",
    ),
    (lambda c: c.busy, BackendUnavailable, "is overloaded (429): {reason}; try again later"),
    (
        lambda c: c.status in {502, 503, 504},
        BackendUnavailable,
        "answered {status} {kind}: {reason}",
    ),
    (
        lambda c: c.kind == "index_not_found_exception",
        StoreLost,
        "has lost an index: {reason}; revelator check --collection NAME --repair rebuilds it",
    ),
    (
        lambda c: c.status == 400 and c.kind in _MAPPING,
        StoreError,
        "has an index with another mapping: {reason}; delete the collection (revelator collections "
        "delete NAME) and ingest it again",
    ),
    (lambda c: True, RetrievalFailure, "answered {status} {kind}: {reason}"),
)


class ElasticServer:
    """Connects at its first use; each call may take `timeout_s` seconds. While the server is
    silent, calls are not sent: they wait up to that long for it to answer.

    `url` needs a port, and may contain user:password. `key` is the password of a user in `url`, and
    without a user an API key. No message repeats them.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        *,
        key: str = "",
    ) -> None:
        self._address = address_of(url)
        self._key = key
        self.place = shown(url)
        self._timeout_s = timeout_s
        self._lock = anyio.Lock()
        self._client: AsyncElasticsearch | None = None
        self._silence = Silence(self._ping)

    async def call(self, request: Callable[[AsyncElasticsearch], Awaitable[Answer]]) -> Answer:
        """Send a request. Raises ConfigurationError, StoreError or RetrievalFailure, with their
        cause."""
        client = self._client or await self._connect()
        from elasticsearch import ApiError, TransportError, UnsupportedProductError  # noqa: PLC0415

        if self._silence.on:
            await self._until_it_answers()
        try:
            answer = await self._sent(request(client))
        except UnsupportedProductError as error:
            raise self._another() from error
        except ApiError as error:
            if error.meta.status in NO_SUCH_PATH and not _is_elasticsearch(error):
                raise self._another() from error
            raise self.failure(complaint(error.meta.status, error.body)) from error
        except TransportError as error:
            raise BackendUnavailable(self._unreached(error)) from error
        # The client checks its first response only; another server may have taken the port since.
        if not _is_elasticsearch(answer):
            raise self._another()
        return answer

    async def _sent(self, answer: Awaitable[Answer]) -> Answer:
        """Return the result, and record whether the server responded at all."""
        from elasticsearch import ApiError, ConnectionTimeout  # noqa: PLC0415

        sent = time.monotonic()
        try:
            result = await answer
        except ApiError:
            self._silence.heard()
            raise
        except (ConnectionTimeout, asyncio.CancelledError):
            self._silence.lost(sent)
            raise
        self._silence.heard()
        return result

    async def _until_it_answers(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._silence.over()
        except TimeoutError as error:
            raise BackendUnavailable(self._late) from error

    async def _ping(self) -> None:
        """Ping over a new connection, because pooled connections may be lost."""
        from elasticsearch import ApiError  # noqa: PLC0415

        client = await anyio.to_thread.run_sync(self._open, 2 * ASK_S)
        async with client:
            with contextlib.suppress(ApiError):  # also a response
                await client.perform_request("HEAD", "/", headers={"accept": "application/json"})

    def _another(self) -> ConfigurationError:
        return ConfigurationError(
            f"retrieval.elasticsearch_url: the server at {self.place} is not Elasticsearch; "
            "correct the address or start Elasticsearch there"
        )

    async def bulk(self, alias: str, actions: Sequence[Action]) -> None:
        """Index or delete in order, in requests of bounded size, without a refresh.

        Items that the cluster is too busy for are sent again, after increasing pauses. Raises as
        `call` does, for the first item that failed; later requests are not sent then.
        """
        await self.call(lambda client: self._stream(client, alias, actions))

    async def _stream(self, client: AsyncElasticsearch, alias: str, actions: Any) -> None:
        from elasticsearch import helpers  # noqa: PLC0415

        stream: Any = helpers.async_streaming_bulk  # its types know no line that is encoded already
        outcomes: AsyncIterator[tuple[bool, Any]] = stream(
            client,
            actions,
            chunk_size=BULK_ACTIONS,
            max_chunk_bytes=BULK_BYTES,
            expand_action_callback=lambda action: action,
            raise_on_error=False,
            max_retries=TRIES - 1,
            initial_backoff=FIRST_PAUSE_S,
            yield_ok=False,
            index=alias,
            require_alias=True,  # otherwise a write to a lost index would create one
            filter_path="items.*.status,items.*.error",
        )
        try:
            async with closing(outcomes) as failed:
                async for _, item in failed:
                    (result,) = item.values()
                    if "error" in result:  # deleting an absent document is no error
                        raise self.failure(complaint(result["status"], result))
        except (KeyError, TypeError, AttributeError) as error:  # no response to a bulk request
            raise self._another() from error

    async def aclose(self) -> None:
        await self._silence.aclose()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def failure(self, problem: Complaint) -> RevelatorError:
        """Return our error for a complaint."""
        error, text = next((kind, text) for holds, kind, text in ANSWERS if holds(problem))
        user, password = self._address.user, self._key or self._address.password
        secrets = (password, self._address.password, basic(user, password))
        reason = without(problem.reason, secrets) or "-"
        message = text.format(status=problem.status, kind=problem.kind, reason=reason)
        return error(f"Elasticsearch at {self.place} {message}")

    async def _connect(self) -> AsyncElasticsearch:
        async with self._lock:
            if self._client is None:
                await anyio.to_thread.run_sync(importlib.import_module, "elasticsearch")
                # The client logs every failed request with a traceback; we raise an error for each.
                logging.getLogger("elastic_transport").setLevel(logging.ERROR)
                try:
                    self._client = self._open(self._timeout_s)
                except ValueError as error:
                    raise ConfigurationError(
                        f"retrieval.elasticsearch_url: {self.place} is not a URL with scheme, "
                        "host and port, such as http://127.0.0.1:9200"
                    ) from error
            client: AsyncElasticsearch = self._client
        return client

    def _open(self, timeout_s: float) -> AsyncElasticsearch:
        """Create a client. Raises ValueError for an invalid URL, ConfigurationError for files of
        authorities without certificates."""
        from elasticsearch import AsyncElasticsearch  # noqa: PLC0415

        options: dict[str, Any] = {}
        if self._address.user:
            options["basic_auth"] = (self._address.user, self._key or self._address.password)
        elif self._key:
            options["api_key"] = self._key
        if context := tls_context():
            options["ssl_context"] = context
        # One retry, because a server that was restarted has closed the pooled connections.
        return AsyncElasticsearch(
            self._address.url,
            **options,
            request_timeout=timeout_s,
            max_retries=1,
            retry_on_status=(),
        )

    @property
    def _late(self) -> str:
        return f"Elasticsearch at {self.place} did not respond in time"

    def _unreached(self, error: Exception) -> str:
        from elasticsearch import ConnectionTimeout  # noqa: PLC0415

        if isinstance(error, ConnectionTimeout):
            return self._late
        while inner := getattr(error, "errors", None):
            error = inner[0]
        return (
            f"Elasticsearch at {self.place} cannot be reached: {reason_of(error)}; check "
            "that it is running and that retrieval.elasticsearch_url is correct"
        )


def complaint(status: int, body: Any) -> Complaint:
    error = body.get("error") if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return Complaint(status, "", str(error)[:300])
    causes = error.get("root_cause") or [error]
    return Complaint(status, str(error.get("type", "")), str(causes[0].get("reason") or "")[:300])


def _is_elasticsearch(answer: Any) -> bool:
    """Return whether a response, or an error of the client, came from Elasticsearch itself."""
    meta = getattr(answer, "meta", None)
    return meta is None or meta.headers.get("x-elastic-product") == "Elasticsearch"


# Detects a server that stopped responding, and probes it with one small request at a time.
#
# Requests to a hung process are not lost: its kernel accepts connections and buffers their data,
# and once the process continues it handles all of that before later requests. Therefore calls to
# a silent server are held back, while one probe at a time, each over its own connection, finds
# out when the server responds again.

ASK_S: Final = 5.0  # after this the connection may be lost, so another one is tried
LEAST_S: Final = 0.04  # a call that was cancelled sooner proves nothing


class Silence:
    """Tracks whether a server is silent: a call ended without a response, and no other call had a
    response since it was sent.

    `ask` makes one request and returns when there is any response. An exception of `ask` means that
    the server is unavailable, but not that it is silent. Call `aclose`, because a request may be in
    flight.
    """

    def __init__(self, ask: Callable[[], Awaitable[object]]) -> None:
        self._ask = ask
        self._heard = -math.inf  # time of the last response, by `time.monotonic`
        self._asking: asyncio.Task[None] | None = None
        self.on = False

    def heard(self) -> None:
        """Record a response, whatever it says."""
        self._heard, self.on = time.monotonic(), False

    def lost(self, sent: float) -> None:
        """Record that a call sent at `sent` (of `time.monotonic`) ended without a response."""
        if self._heard < sent and time.monotonic() - sent >= LEAST_S:
            self.on = True

    async def over(self) -> None:
        """Return once the server is not silent."""
        while self.on:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask_once())
            await asyncio.wait({self._asking})

    async def aclose(self) -> None:
        """Cancel the request in flight, if there is one."""
        if (asking := self._asking) is not None:
            asking.cancel()
            await asyncio.wait({asking})

    async def _ask_once(self) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                await self._ask()
        except TimeoutError:
            return
        except Exception:  # the next caller gets the same error, and reports it
            self.on = False
        else:
            self.heard()
        finally:
            self._asking = None
