"""One Elasticsearch cluster: its client, bulk writes, and the mapping of its errors to ours."""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import to_thread

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


# Our errors by kind or by status of the cluster's; {reason} is its own message.
Meaning = tuple[type[RevelatorError], str]
BLOCKED: Meaning = (
    StoreError,
    "blocks writing to its index: {reason}; free disk space or remove the block (index.blocks.*), "
    "then run the ingest again",
)
_REFUSED: Meaning = (
    ConfigurationError,
    "rejected the credentials ({status}): {reason}; check the user in retrieval.elasticsearch_url, "
    "and retrieval.elasticsearch_key",
)
BY_STATUS: dict[int, Meaning] = {
    **dict.fromkeys((401, 403), _REFUSED),
    429: (BackendUnavailable, "is overloaded (429): {reason}; try again later"),
    **dict.fromkeys((502, 503, 504), (BackendUnavailable, "answered {status} {kind}: {reason}")),
}
_MAPPING: Meaning = (
    StoreError,
    "has an index with another mapping: {reason}; delete the collection (revelator collections "
    "delete NAME) and ingest it again",
)
BY_KIND: dict[str, Meaning] = {
    "index_not_found_exception": (
        StoreLost,
        "has lost an index: {reason}; revelator check --collection NAME --repair rebuilds it",
    ),
    "document_parsing_exception": _MAPPING,
    "mapper_parsing_exception": _MAPPING,
    "strict_dynamic_mapping_exception": _MAPPING,
    "illegal_argument_exception": _MAPPING,
}
OTHER: Meaning = (RetrievalFailure, "answered {status} {kind}: {reason}")


class ElasticServer:
    """Connects at its first use; each call may take `timeout_s` seconds.

    `url` needs a port, and may contain user:password. `key` is the password of a user in `url`, and
    without a user an API key. No message repeats them.
    """

    def __init__(self, url: str, timeout_s: float, *, key: str = "") -> None:
        self._address = address_of(url)
        self._key = key
        self.place = shown(url)
        self._timeout_s = timeout_s
        self._client: AsyncElasticsearch | None = None

    async def call(self, request: Callable[[AsyncElasticsearch], Awaitable[Answer]]) -> Answer:
        """Send a request. Raises ConfigurationError, StoreError or RetrievalFailure, with their
        cause."""
        client = self._client or await self._connect()
        from elasticsearch import ApiError, TransportError, UnsupportedProductError  # noqa: PLC0415

        try:
            answer = await request(client)
        except UnsupportedProductError as error:
            raise self._another() from error
        except ApiError as error:
            if error.meta.status in NO_SUCH_PATH and not _is_elasticsearch(error):
                raise self._another() from error
            raise self.failure(error.meta.status, error.body) from error
        except TransportError as error:
            raise BackendUnavailable(self._unreached(error)) from error
        # The client checks its first response only; another server may have taken the port since.
        if not _is_elasticsearch(answer):
            raise self._another()
        return answer

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
                        raise self.failure(result["status"], result)
        except (KeyError, TypeError, AttributeError) as error:  # no response to a bulk request
            raise self._another() from error

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def failure(self, status: int, body: Any) -> RevelatorError:
        """Return our error for a response, or for one item of a bulk request, that is an error."""
        kind, reason = _complaint(body)
        meant = BY_STATUS.get(status) or BY_KIND.get(kind, OTHER)
        if kind == "cluster_block_exception" and status in {403, 429}:
            meant = BLOCKED
        error, text = meant
        user, password = self._address.user, self._key or self._address.password
        secrets = (password, self._address.password, basic(user, password))
        reason = without(reason, secrets) or "-"
        message = text.format(status=status, kind=kind, reason=reason)
        return error(f"Elasticsearch at {self.place} {message}")

    async def _connect(self) -> AsyncElasticsearch:
        """Create the client. Raises ConfigurationError for an invalid URL, and for files of
        authorities without certificates."""
        await to_thread.run_sync(importlib.import_module, "elasticsearch")
        if self._client is not None:  # another call has created it meanwhile
            return self._client
        from elasticsearch import AsyncElasticsearch  # noqa: PLC0415

        # The client logs every failed request with a traceback; we raise an error for each.
        logging.getLogger("elastic_transport").setLevel(logging.ERROR)
        # One retry, because a server that was restarted has closed the pooled connections.
        options: dict[str, Any] = {
            "request_timeout": self._timeout_s, "max_retries": 1, "retry_on_status": (),
        }  # fmt: skip
        if self._address.user:
            options["basic_auth"] = (self._address.user, self._key or self._address.password)
        elif self._key:
            options["api_key"] = self._key
        if context := tls_context():
            options["ssl_context"] = context
        try:
            self._client = AsyncElasticsearch(self._address.url, **options)
        except ValueError as error:
            raise ConfigurationError(
                f"retrieval.elasticsearch_url: {self.place} is not a URL with scheme, "
                "host and port, such as http://127.0.0.1:9200"
            ) from error
        return self._client

    def _unreached(self, error: Exception) -> str:
        from elasticsearch import ConnectionTimeout  # noqa: PLC0415

        if isinstance(error, ConnectionTimeout):
            return f"Elasticsearch at {self.place} did not respond in time"
        while inner := getattr(error, "errors", None):
            error = inner[0]
        return (
            f"Elasticsearch at {self.place} cannot be reached: {reason_of(error)}; check "
            "that it is running and that retrieval.elasticsearch_url is correct"
        )


def _complaint(body: Any) -> tuple[str, str]:
    """Return the kind and the reason that an error of the cluster names."""
    error = body.get("error") if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return "", str(error)[:300]
    causes = error.get("root_cause") or [error]
    return str(error.get("type", "")), str(causes[0].get("reason") or "")[:300]


def _is_elasticsearch(answer: Any) -> bool:
    """Return whether a response, or an error of the client, came from Elasticsearch itself."""
    meta = getattr(answer, "meta", None)
    return meta is None or meta.headers.get("x-elastic-product") == "Elasticsearch"
