"""A typed client of a Revelator server.

    async with Client("http://127.0.0.1:8000", key="…") as client:
        answer = await client.answer("When was the writer of Billy Elliot born?")
        async for event in client.stream("Who wrote Billy Elliot?", loop="anrag"):
            print(event)

A server that is busy is asked again when it says so (`Retry-After`), and a connection that was lost
is opened again. Questions have an `Idempotency-Key`, so that none is answered twice, and a stream
that broke continues after its last event (`Last-Event-ID`).
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import quote

import anyio
import orjson
from pydantic import BaseModel, SecretStr, TypeAdapter

from service.answer.events import BaseEvent, Done, Event, event_models
from service.answer.fold import collect
from service.core.concurrency import closing
from service.core.connections import open_session, reason_of
from service.core.domain import Answer, Problem
from service.core.errors import EngineFailure, InvalidRequest, RevelatorError
from service.core.settings.urls import address_of, authorization, checked, shown
from service.retrieval.client import ANOTHER, refused, send
from service.retrieval.collections.bodies import (
    CollectionInfo,
    CollectionList,
    IngestReport,
    StoredDocument,
)

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

RETRIES: Final = 2  # of a connection that was lost, one after the other
BACKOFF_S: Final = 0.25  # before the first of them; twice as long before each further one
PATIENCE_S: Final = 60.0  # in all, for a server that is busy
SILENCE_S: Final = 60.0  # of a stream; the server sends a comment more often
CALL_S: Final = 300.0  # of a request that is no question: embedding takes time on a busy machine
STREAM_LIMIT: Final = 8 * 1024 * 1024  # bytes of one event: an answer's body holds every step
NDJSON: Final = "application/x-ndjson"
_KNOWN: Final = frozenset(event_models())
_EVENT: Final[TypeAdapter[BaseEvent]] = TypeAdapter(Event)


class AnswerFailed(RevelatorError):
    """The server ended the question with `problem` instead of an answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.slug, self.title = problem.type.rpartition(":")[2], problem.title
        self.status = problem.status


class Client:
    """Asks the server at `base`; any number of questions at the same time.

    `key` is an API key; credentials in `base` are sent without one. `retries` is how many times in
    a row a lost connection is opened again, and `patience_s` how long, in all, a busy server is
    waited for. Every method raises what the server refuses it for, with its message: Overloaded or
    Draining, NotFound, LoopUnavailable, ConfigurationError for a key, InvalidRequest, StoreError;
    and EngineFailure if the connection is lost for good.
    """

    def __init__(
        self,
        base: str = "http://127.0.0.1:8000",
        *,
        key: str | SecretStr | None = None,
        retries: int = RETRIES,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.base = checked(base)
        self.retries = retries
        self.patience_s = patience_s
        self._key = SecretStr(key) if isinstance(key, str) else key
        self._opened: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._opened = open_session(
            headers=authorization(self.base, self._key),
            silence_s=SILENCE_S, limit=0, read_bufsize=STREAM_LIMIT,
        )  # fmt: skip
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def answer(self, question: str, **fields: Any) -> Answer:
        """Return the answer. `fields` are those of a request, such as `collection` or `loop`.

        Raises AnswerFailed if the question failed.
        """
        result = await collect(self.stream(question, **fields))
        if isinstance(result, Problem):
            raise AnswerFailed(result)
        return result

    def stream(self, question: str, **fields: Any) -> AsyncIterator[BaseEvent]:
        """Iterate over the events of a question: `Start` first, `Done` last.

        Event types that this version does not know are ignored. A question whose iterator is
        closed is cancelled, after 10 s in which another reader might come.
        """
        return self.events({"question": question, **fields})

    async def events(
        self, fields: Mapping[str, Any], *, resumed: bool = True
    ) -> AsyncIterator[BaseEvent]:
        """Iterate over the events of a request, as `stream` does. If it is not to be `resumed`, it
        has no key: closing the iterator cancels the question at once."""
        headers = {"Accept": "text/event-stream"}
        if resumed:
            headers["Idempotency-Key"] = uuid.uuid4().hex
        attempts = _Attempts(self)
        while True:
            try:
                async with closing(self._once(fields, headers)) as events:
                    async for place, event in events:
                        attempts.failures = 0
                        if resumed:
                            headers["Last-Event-ID"] = place
                        yield event
                return
            except _Broken as broken:
                if not resumed:
                    raise broken.error from None
                await attempts.wait(broken.error)
            except RevelatorError as error:
                await attempts.wait(error)

    async def _once(
        self, fields: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[tuple[str, BaseEvent]]:
        """One attempt: the id of each event, and the event. Raises _Broken."""
        import aiohttp  # noqa: PLC0415

        address = f"{address_of(self.base).url}/answer/stream"
        try:
            async with self._session.post(address, json=dict(fields), headers=headers) as response:
                if response.status == 204:  # the event before the break was the last one
                    return
                if response.status != 200:
                    raise await refused(response, shown(self.base))
                if response.content_type != "text/event-stream":
                    raise InvalidRequest(f"{shown(self.base)}: {ANOTHER}")
                async for place, event in read_events(response.content):
                    yield place, event
                    if isinstance(event, Done):
                        return
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _Broken(self._lost(reason_of(error))) from None
        raise _Broken(self._lost("the stream ended too early"))

    async def collections(self) -> list[CollectionInfo]:
        """Return the collections that the key may use."""
        return (await self._call("GET", "", CollectionList)).collections

    async def collection(self, name: str) -> CollectionInfo:
        """Return a collection with its counts."""
        return await self._call("GET", _path(name), CollectionInfo)

    async def put_collection(self, name: str, **properties: Any) -> CollectionInfo:
        """Create a collection, or change its `description`, `metadata_fields` or `analysis`."""
        return await self._call("PUT", _path(name), CollectionInfo, orjson.dumps(properties))

    async def delete_collection(self, name: str) -> None:
        """Delete a collection and all its documents."""
        await self._send("DELETE", _path(name))

    async def add_documents(
        self, name: str, documents: Iterable[Mapping[str, Any]]
    ) -> IngestReport:
        """Add documents with `text`, and optionally `id`, `title` and metadata fields.

        They are sent in one request; send large corpora in batches.
        """
        lines = b"\n".join(orjson.dumps(dict(document)) for document in documents)
        return await self._call("POST", f"{_path(name)}/documents", IngestReport, lines, NDJSON)

    async def document(self, name: str, document_id: str) -> StoredDocument:
        """Return a stored document with its passages."""
        return await self._call("GET", _path(name, document_id), StoredDocument)

    async def delete_document(self, name: str, document_id: str) -> None:
        """Delete a document and all its passages."""
        await self._send("DELETE", _path(name, document_id))

    async def _call(
        self,
        method: str,
        path: str,
        body: type[M],
        content: bytes = b"",
        kind: str = "application/json",
    ) -> M:
        found = await self._send(method, path, content, kind)
        return body.model_validate(found, extra="ignore")

    async def _send(
        self, method: str, path: str, content: bytes = b"", kind: str = "application/json"
    ) -> Any:
        """Send a request that may be repeated: each of them leaves the same state a second time."""
        url = f"{self.base}/collections{path}"
        return await self._retried(
            lambda: send(self._session, method, url, content, kind, again="try again later")
        )

    async def _retried(self, work: Callable[[], Awaitable[T]]) -> T:
        import aiohttp  # noqa: PLC0415

        attempts = _Attempts(self)
        while True:
            try:
                with anyio.fail_after(CALL_S):
                    return await work()
            except (aiohttp.ClientError, TimeoutError) as error:
                await attempts.wait(self._lost(reason_of(error)))
            except RevelatorError as error:
                await attempts.wait(error)

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            raise RuntimeError("the client is not open; use it as: async with Client(…) as client")
        return self._opened

    def _lost(self, reason: str) -> _Lost:
        return _Lost(
            f"the server at {shown(self.base)} cannot be reached, or closed the connection: "
            f"{reason}; check the address and that the server runs (revelator serve)"
        )


class _Lost(EngineFailure):
    """The connection was not accepted, or ended too early."""


class _Broken(Exception):
    """An attempt that ended early, by a fault of the connection."""

    def __init__(self, error: _Lost) -> None:
        self.error = error


class _Attempts:
    """The attempts of one request."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waited_s = 0.0
        self.failures = 0

    async def wait(self, error: RevelatorError) -> None:
        """Wait until the next attempt. Raises the error if there is none."""
        lost = isinstance(error, _Lost)
        self.failures += lost
        left_s = self._client.patience_s - self._waited_s
        pause_s = pause(error, self.failures, self._client.retries, left_s)
        if pause_s is None:
            raise error from None
        self._waited_s += 0.0 if lost else pause_s
        await anyio.sleep(pause_s)


def pause(error: RevelatorError, failures: int, retries: int, left_s: float) -> float | None:
    """Return the seconds until a request is repeated after an error, or None if it is not.

    A connection that was lost is opened `retries` times in a row. A refusal that names a time to
    wait is repeated after this time, if `left_s` allows it.
    """
    if isinstance(error, _Lost):
        return BACKOFF_S * 2 ** (failures - 1) if failures <= retries else None
    busy = error.status in {429, 503} and error.retry_after is not None
    return float(error.retry_after or 0) if busy and (error.retry_after or 0) <= left_s else None


async def read_events(lines: AsyncIterable[bytes]) -> AsyncIterator[tuple[str, BaseEvent]]:
    """Read the lines of an event stream. Yields the id of each event, and the event."""
    place, fields = "", dict[str, str]()
    async for line in lines:
        text = line.decode().rstrip("\r\n")
        if text:  # a comment has an empty name
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
        else:
            place = fields.get("id", place)
            if fields.get("event") in _KNOWN and "data" in fields:
                data = orjson.loads(fields["data"]) | {"event": fields["event"]}
                yield place, _EVENT.validate_python(data, extra="ignore")
            fields = {}


def _path(*names: str) -> str:
    """The path of a collection, or of a document in one, below `/collections`."""
    name, *document = [quote(name, safe="/" if place else "") for place, name in enumerate(names)]
    return f"/{name}" + "".join(f"/documents/{each}" for each in document)
