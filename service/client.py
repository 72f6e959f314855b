"""A typed client of a Revelator server.

    async with Client("http://127.0.0.1:8000", key="…") as client:
        answer = await client.answer("When was the writer of Billy Elliot born?")
        async for event in client.stream("Who wrote Billy Elliot?", loop="anrag"):
            print(event)

A request to a busy server is repeated after the time that the server states (`Retry-After`), and a
lost connection is opened again. Questions have an `Idempotency-Key`, so that none is answered
twice, and an interrupted stream continues after its last event (`Last-Event-ID`).
"""

from __future__ import annotations

import uuid
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

import anyio
import anyio.to_thread
import orjson
import structlog
from pydantic import BaseModel, SecretStr

from service.answer.events import BaseEvent, Done, RetrievedPassage
from service.answer.fold import collect
from service.client_wire import (
    ANOTHER,
    EVENT_STREAM,
    decoded,
    error_of,
    event_fields,
    read_events,
    refusal_error,
)
from service.core.concurrency import closing
from service.core.connections import CONNECT_S, open_session, reason_of
from service.core.domain import Answer, Problem
from service.core.errors import (
    Draining,
    EngineFailure,
    InvalidRequest,
    NotFound,
    Overloaded,
    RevelatorError,
    StoreBusy,
    StoreError,
)
from service.core.progress import Follow, unseen
from service.core.settings.urls import address_of, authorization, checked, shown
from service.retrieval.reports import (
    CollectionInfo,
    CollectionList,
    CollectionReport,
    DocumentList,
    FileReport,
    FilesReport,
    IngestReport,
    StoredDocument,
)

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

RETRIES: Final = 2  # attempts to reopen a lost connection
BACKOFF_S: Final = 0.25  # seconds before the first attempt; doubles with each later one
PATIENCE_S: Final = 60.0  # seconds to wait in total for a busy server
SILENCE_S: Final = 60.0  # seconds without data in a stream; the server sends comments more often
# Time limit in seconds of requests other than questions: embedding is slow on a busy machine, and a
# deletion waits for the questions that run on the collection.
CALL_S: Final = 330.0
STREAM_LIMIT: Final = 8 * 1024 * 1024  # most bytes of an event: a body contains every step
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
_log = structlog.get_logger(__name__)


class AnswerFailed(RevelatorError):
    """Raised if the server ended the question with `problem` instead of an answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.slug, self.title = problem.type.rpartition(":")[2], problem.title
        self.status = problem.status


class Client:
    """Asks the server at `base` any number of questions at the same time.

    `key` is an API key; without one, credentials in `base` are sent. `retries` is the number of
    consecutive attempts to reopen a lost connection, and `patience_s` the total time in seconds to
    wait for a busy server. `again` ends the messages of errors that may pass. Every method raises
    the error that the server reports, with its message: Overloaded or Draining, NotFound,
    LoopUnavailable, ConfigurationError for a key, InvalidRequest, or StoreError. It raises
    EngineFailure if the connection is lost permanently.
    """

    def __init__(
        self,
        base: str = "http://127.0.0.1:8000",
        *,
        key: str | SecretStr | None = None,
        retries: int = RETRIES,
        patience_s: float = PATIENCE_S,
        again: str = "try again later",
    ) -> None:
        self.base = checked(base)
        self.retries = retries
        self.patience_s = patience_s
        self._again = again
        self._key = SecretStr(key) if isinstance(key, str) else key
        self._opened: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._opened = open_session(
            headers=authorization(self.base, self._key),
            limit=0, read_bufsize=STREAM_LIMIT, middlewares=[_not_repeated],
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
        """Return the answer to a question.

        `fields` are request fields such as `collection` or `loop`. Raises AnswerFailed if the
        question failed.
        """
        result = await collect(self.stream(question, **fields))
        if isinstance(result, Problem):
            raise AnswerFailed(result)
        return result

    def stream(self, question: str, **fields: Any) -> AsyncIterator[BaseEvent]:
        """Yield the events of a question: `Start` first, `Done` last.

        Event types that this version does not know are ignored. After the iterator is closed, the
        server cancels the question unless another reader connects within 10 s.
        """
        return self.events({"question": question, **fields})

    async def events(
        self, fields: Mapping[str, Any], *, resumed: bool = True
    ) -> AsyncIterator[BaseEvent]:
        """Yield the events of a request, as `stream` does.

        Without `resumed`, the request has no key, and closing the iterator cancels the question at
        once.
        """
        headers: dict[str, str] = {}
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
            except RevelatorError as error:
                if isinstance(error, _Lost) and not resumed:
                    raise
                await attempts.wait(error)

    async def _once(
        self, fields: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[tuple[str, BaseEvent]]:
        """Make one attempt, and yield the id of each event with the event."""
        async with self._response(
            "POST", "/answer/stream", stream=True, json=dict(fields), headers=headers
        ) as response:
            if response.status == 204:  # the last event was received before the interruption
                return
            async for place, event in read_events(response.content):
                yield place, event
                if isinstance(event, Done):
                    return
        raise self._lost("the stream ended too early")

    async def search(self, query: str, **fields: Any) -> list[RetrievedPassage]:
        """Return the passages that a search finds; `fields` are those of `POST /search`."""
        body = orjson.dumps({"query": query} | fields)
        found = decoded(await self._send("POST", "/search", body), self.base)
        return [RetrievedPassage.model_validate(passage) for passage in found["passages"]]

    async def degraded(self) -> list[str]:
        """Return what is degraded. Raises StoreError if the server cannot answer questions."""
        ready = decoded(await self._send("GET", "/readyz"), self.base)
        return list(ready.get("degraded", ()))

    async def collections(self) -> CollectionList:
        """Return the collections that the key may use."""
        return await self._call("GET", "/collections", CollectionList)

    async def collection(self, name: str) -> CollectionInfo:
        """Return a collection with its counts."""
        return await self._call("GET", _path(name), CollectionInfo)

    async def put_collection(self, name: str, **properties: Any) -> CollectionInfo:
        """Create a collection, or change its `description`, `metadata_fields` or `analysis`."""
        return await self._call("PUT", _path(name), CollectionInfo, orjson.dumps(properties))

    async def delete_collection(self, name: str) -> None:
        """Delete a collection and all its documents."""
        await self._delete(_path(name))

    async def add_documents(
        self, name: str, documents: Iterable[Mapping[str, Any]], *, more: bool = False
    ) -> IngestReport:
        """Add documents with `text`, and optionally `id`, `title` and metadata fields.

        They are sent in one request, so send large corpora in batches. With `more`, the collection
        stays `building` until a request without it.
        """
        lines = b"\n".join(orjson.dumps(dict(document)) for document in documents)
        path = f"{_path(name)}/documents{'?more=true' if more else ''}"
        return await self._call("POST", path, IngestReport, lines, NDJSON)

    async def replace_documents(
        self, name: str, documents: AsyncIterable[Mapping[str, Any]]
    ) -> IngestReport:
        """Replace all documents of a collection atomically. They are sent as they come, in one
        request that is not repeated."""

        async def lines() -> AsyncIterator[bytes]:
            async for document in documents:
                yield orjson.dumps(dict(document)) + b"\n"

        path = f"{_path(name)}/documents"
        found = await self._sent("PUT", path, lines(), NDJSON, limit_s=None)
        return IngestReport.model_validate(decoded(found, self.base), extra="ignore")

    async def add_files(
        self,
        name: str,
        files: Sequence[Path],
        *,
        access: Sequence[str] = (),
        follow: Follow = unseen,
    ) -> list[FileReport]:
        """Add files as the server reads them, and return what became of each. `access` names the
        users and groups that may see them. `follow` is called with the progress, in files. They are
        sent in one request, so send many files in batches. Raises OSError, too."""
        path = f"{_path(name)}/files?{urlencode({'access': access}, doseq=True)}"
        found = await self._followed("POST", path, follow, FilesReport, lambda: _form(files))
        return found.files

    async def documents(self, name: str, **query: Any) -> DocumentList:
        """Return a page of the documents of a collection; `query` has the parameters of the
        path, such as `after` and `file`."""
        return await self._call("GET", f"{_path(name)}/documents?{urlencode(query)}", DocumentList)

    async def document(self, name: str, document_id: str) -> StoredDocument:
        """Return a stored document with its passages."""
        return await self._call("GET", _path(name, document_id), StoredDocument)

    async def file(self, name: str, document_id: str) -> bytes:
        """Return the original file of a document. Raises NotFound where it is not kept."""
        return await self._send("GET", f"{_path(name, document_id)}/file")

    async def feedback(
        self,
        answer_id: str,
        verdict: Literal["up", "down"],
        *,
        reason: str = "",
        expected: str = "",
    ) -> None:
        """Say whether an answer, given by its `id`, was right, and what would be. Raises NotFound
        where feedback is not kept, and for an answer that this key was not given."""
        given = {"answer_id": answer_id, "verdict": verdict, "reason": reason, "expected": expected}
        await self._send("POST", "/feedback", orjson.dumps(given))

    async def delete_document(self, name: str, document_id: str) -> None:
        """Delete a document and all its passages."""
        await self._delete(_path(name, document_id))

    async def check(self, name: str, follow: Follow = unseen) -> CollectionReport:
        """Compare a collection's manifest and stores. `follow` is called with the progress."""
        return await self._followed("GET", f"{_path(name)}/check", follow, CollectionReport)

    async def repair(self, name: str, follow: Follow = unseen) -> CollectionReport:
        """Repair a collection. `follow` is called with the progress."""
        return await self._followed("POST", f"{_path(name)}/repair", follow, CollectionReport)

    async def _call(
        self, method: str, path: str, body: type[M], content: bytes = b"", kind: str = JSON
    ) -> M:
        found = await self._send(method, path, content, kind)
        return body.model_validate(decoded(found, f"{self.base}{path}"), extra="ignore")

    async def _send(self, method: str, path: str, content: bytes = b"", kind: str = JSON) -> bytes:
        """Send a request that can be repeated, because a repetition leaves the same state. Returns
        the body of the response."""
        return await self._retried(lambda: self._sent(method, path, content, kind, limit_s=CALL_S))

    async def _sent(
        self,
        method: str,
        path: str,
        content: bytes | AsyncIterator[bytes],
        kind: str,
        *,
        limit_s: float | None,
    ) -> bytes:
        """Send a request once. Returns the body of the response."""
        headers = {"content-type": kind}
        async with self._response(
            method, path, limit_s=limit_s, data=content, headers=headers
        ) as response:
            return await response.read()

    async def _followed(
        self,
        method: str,
        path: str,
        follow: Follow,
        body: type[M],
        form: Callable[[], Awaitable[aiohttp.FormData]] | None = None,
    ) -> M:
        """Return the report of long work, whose progress is told meanwhile."""
        where = f"{method} {shown(f'{self.base}{path}')}"

        async def attempt() -> Any:
            data = await form() if form else None
            async with self._response(method, path, stream=True, data=data) as response:
                async for fields in event_fields(response.content):
                    content = fields.get("data", "{}").encode()
                    told = orjson.loads(content)
                    match fields.get("event"):
                        case "progress":
                            follow(told["stage"], told["done"], told["total"])
                        case "error":
                            raise error_of(content, told["status"], where, self._again)
                        case "report":
                            return told
            raise StoreError(
                f"{where}: the server ended the response before its end; {self._again}"
            )

        return body.model_validate(await self._retried(attempt), extra="ignore")

    async def _delete(self, path: str) -> None:
        """Send a DELETE. A repetition that finds nothing was preceded by one that deleted it."""
        lost = False  # whether an earlier attempt may have reached the collections

        async def attempt() -> None:
            nonlocal lost
            try:
                await self._sent("DELETE", path, b"", JSON, limit_s=CALL_S)
            except NotFound:
                if not lost:
                    raise
            except _Lost as error:
                lost = lost or error.sent
                raise

        await self._retried(attempt)

    async def _retried(self, work: Callable[[], Awaitable[T]]) -> T:
        attempts = _Attempts(self)
        while True:
            try:
                return await work()
            except RevelatorError as error:
                await attempts.wait(error)

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        *,
        stream: bool = False,
        limit_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        **sent: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request once, and yield the response, with `stream` one of events.

        Raises as `refusal_error` says if the server refuses it, and _Lost if the connection is
        lost, or silent for too long.
        """
        import aiohttp  # noqa: PLC0415

        url = f"{self.base}{path}"
        limits = aiohttp.ClientTimeout(
            total=limit_s, connect=CONNECT_S, sock_read=SILENCE_S if stream else None
        )
        headers = {**(headers or {}), **({"accept": EVENT_STREAM} if stream else {})}
        try:
            async with self._session.request(
                method, address_of(url).url, timeout=limits, headers=headers, **sent
            ) as response:
                if response.status >= 400:
                    raise await refusal_error(response, f"{method} {shown(url)}", self._again)
                if stream and response.status == 200 and response.content_type != EVENT_STREAM:
                    raise InvalidRequest(f"{shown(url)}: {ANOTHER}")
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            unsent = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
            raise self._lost(reason_of(error), sent=not isinstance(error, unsent)) from None

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            raise RuntimeError("the client is not open; use it as: async with Client(…) as client")
        return self._opened

    def _lost(self, reason: str, *, sent: bool = True) -> _Lost:
        error = _Lost(
            f"the server at {shown(self.base)} cannot be reached, or closed the connection: "
            f"{reason}; check the address and that the server runs (revelator serve), then "
            f"{self._again}"
        )
        error.sent = sent
        return error


async def _not_repeated(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Raise an error for a DELETE that was sent and lost. aiohttp would repeat it itself, and
    `Client._delete` would not learn that it was sent twice.
    """
    import aiohttp  # noqa: PLC0415

    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method != "DELETE" or isinstance(error, aiohttp.ClientConnectorError):
            raise
        raise aiohttp.ClientError(reason_of(error)) from error


class _Lost(EngineFailure):
    """The connection was not accepted, or ended early. `sent`: the server may have received the
    request."""

    sent = True


class _Attempts:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._waited_s = 0.0
        self.failures = 0

    async def wait(self, error: RevelatorError) -> None:
        """Wait until the next attempt. Raises the error if no attempts remain."""
        lost = isinstance(error, _Lost)
        self.failures += lost
        left_s = self._client.patience_s - self._waited_s
        pause_s = pause(error, self.failures, self._client.retries, left_s)
        if pause_s is None:
            raise error from None
        if isinstance(error, StoreBusy) and not self._waited_s:
            _log.warning("waiting for another writer", reason=error.detail, at_most_s=left_s)
        self._waited_s += 0.0 if lost else pause_s
        await anyio.sleep(pause_s)


def pause(error: RevelatorError, failures: int, retries: int, left_s: float) -> float | None:
    """Return the seconds until a request is repeated after an error, or None if it is not repeated.

    A lost connection is reopened up to `retries` times in a row. A refusal with a waiting time is
    repeated after that time, if it is at most `left_s` seconds.
    """
    if isinstance(error, _Lost):
        return BACKOFF_S * 2 ** (failures - 1) if failures <= retries else None
    wait_s = error.retry_after if isinstance(error, Overloaded | Draining | StoreBusy) else None
    return None if wait_s is None or wait_s > left_s else float(wait_s)


async def _form(files: Sequence[Path]) -> aiohttp.FormData:
    """Return a form of files, which are closed when it is sent."""
    import aiohttp  # noqa: PLC0415

    form = aiohttp.FormData(quote_fields=False)
    for file in files:
        opened = await anyio.to_thread.run_sync(file.open, "rb")
        form.add_field("files", opened, filename=file.name)
    return form


def _path(*names: str) -> str:
    """Return the path of a collection, or of a document in one.

    Slashes in ids are quoted, because `..` between slashes would refer to another document.
    """
    name, *document = [quote(name, safe="") for name in names]
    return f"/collections/{name}" + "".join(f"/documents/{part}" for part in document)
