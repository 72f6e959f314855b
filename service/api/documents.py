"""`/collections` and the documents in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import anyio
import orjson
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response

from service.api.access import require, tenant_of
from service.api.admission import DETAIL
from service.api.answer import disconnected
from service.api.edge import edge_of
from service.api.tenants import RIGHTS
from service.api.wire import (
    CLIENT_GONE,
    EVENT_STREAM,
    JSON,
    NDJSON,
    READ_REFUSALS,
    REFUSALS,
    REQUEST_TIMEOUT,
    EventStream,
    Refusal,
    body_schema,
    content_type,
    documented,
    followed,
    read_json,
    read_lines,
    stream_content,
)
from service.core.concurrency import running
from service.core.errors import Draining, InvalidRequest
from service.core.progress import Follow, unseen
from service.core.validation import Strict, parse
from service.retrieval.base import EVERYTHING, Analysis
from service.retrieval.documents import LONGEST_ID, BadDocument, Document, parse_document
from service.retrieval.reports import (
    CollectionInfo,
    CollectionList,
    CollectionReport,
    DocumentList,
    FailedDocument,
    IngestReport,
    ListedDocument,
    StoredDocument,
    StoredPassage,
)

if TYPE_CHECKING:
    from service.retrieval.collections.catalog import Collections
    from service.retrieval.collections.writer import CollectionWriter

LONGEST_LINE: Final = 1_000_000  # bytes of one NDJSON line
BATCH: Final = 256  # documents written at once
BATCH_BYTES: Final = 8_000_000  # characters of their lines
MOST_LISTED: Final = 1_000  # documents of one page
MOST_FAILED: Final = 10_000  # invalid documents after which reading stops


class CollectionRequest(Strict):
    """Properties of a collection. For an existing collection, only the given properties change."""

    description: str | None = Field(None, max_length=2_000)
    metadata_fields: Annotated[list[str], Field(max_length=256)] = Field(
        [],
        description="Metadata fields that a filter may use. Documents add their own fields "
        "automatically.",
    )
    analysis: Analysis | None = Field(
        None,
        description="Text analysis for BM25: the language whose stemming and stop words are used, "
        "or `simple` for words as they are. All fold case and accents, and find parts of "
        "texts that have no spaces, such as Chinese, Japanese and Thai. Default: the language of "
        "the first documents, if they are clearly in one of these, else `english`. It cannot be "
        "changed later.",
    )


class DocumentBatch(Strict):
    """A list of documents. Each has `text`, and optionally `id`, `title` and metadata fields of any
    name."""

    documents: list[Any]


async def collections_of(request: Request) -> Collections:
    """Dependency: the collections."""
    return edge_of(request).runtime.retrieval.collections


async def collection_body(request: Request) -> CollectionRequest:
    """Dependency: the body of a PUT request. An empty body changes nothing."""
    headers = request.headers
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return CollectionRequest()
    return parse(CollectionRequest, await read_json(request))


class DocumentId(PathConvertor):
    """The rest of a path, with its line breaks. Starlette's own convertor leaves out a last one, so
    that the path would name another document."""

    regex = "(?s:.*)"


register_url_convertor("document_id", DocumentId())

if TYPE_CHECKING:
    Stores = Annotated[Collections, Depends(collections_of)]
else:  # FastAPI needs no type, and the libraries of stores are imported when one is opened
    Stores = Annotated[Any, Depends(collections_of)]

ASK, WRITE, ADMINISTER = ([Depends(require(right))] for right in RIGHTS)

router = APIRouter(tags=["collections"], responses=documented(*READ_REFUSALS))


@router.get(
    "/collections",
    dependencies=ASK,
    summary="List collections",
)
async def list_collections(request: Request, stores: Stores) -> CollectionList:
    """List the collections that the key may use with their counts, including the shipped
    sample."""
    tenant = tenant_of(request)
    return await stores.listed(tenant.may_use, tenant.principals)


@router.put(
    "/collections/{name}",
    dependencies=ADMINISTER,
    responses=documented(*REFUSALS),
    openapi_extra=body_schema(CollectionRequest, required=False),
    summary="Create or change a collection",
)
async def put_collection(
    request: Request,
    name: str,
    stores: Stores,
    wanted: Annotated[CollectionRequest, Depends(collection_body)],
) -> CollectionInfo:
    """Create a collection, or change its description and add metadata fields."""
    await stores.create(
        name,
        description=wanted.description,
        metadata_fields=wanted.metadata_fields,
        analysis=wanted.analysis,
    )
    return await stores.info(name, tenant_of(request).principals)


@router.get(
    "/collections/{name}",
    dependencies=ASK,
    summary="Show a collection",
)
async def get_collection(request: Request, name: str, stores: Stores) -> CollectionInfo:
    """Return a collection with its counts, which are of the documents that the caller may see."""
    return await stores.info(name, tenant_of(request).principals)


@router.delete(
    "/collections/{name}", status_code=204, dependencies=ADMINISTER,
    response_class=Response, summary="Delete a collection",
)  # fmt: skip
async def delete_collection(name: str, stores: Stores) -> None:
    """Delete a collection and all its documents."""
    await stores.delete(name)


@router.post(
    "/collections/{name}/documents",
    dependencies=WRITE,
    responses=documented(*REFUSALS),
    openapi_extra=body_schema(DocumentBatch),
    summary="Add documents",
)
async def add_documents(
    request: Request,
    name: str,
    stores: Stores,
    more: Annotated[
        bool,
        Query(
            description="More documents follow in other requests. Until one without this, the "
            "collection's `state` is `building`, and answers from it name `index-incomplete`."
        ),
    ] = False,
) -> IngestReport:
    """Add documents, or replace those with the same ids. Unchanged documents are skipped. Invalid
    documents are reported in the response; the others are indexed. Send any number of documents
    as NDJSON, one per line, with `Content-Type: application/x-ndjson`: they are indexed in batches,
    and other uploads to the collection may take place between batches. An interrupted body leaves
    the collection `building`."""
    return await ingest(request, stores, name, await items_of(request), more=more)


async def ingest(
    request: Request,
    stores: Collections,
    name: str,
    items: AsyncIterator[Item],
    *,
    more: bool = False,
) -> IngestReport:
    """Index documents. Raises NotFound, Draining, and the errors of reading the items."""
    await stores.resolve(name)
    work = Ingest(
        lambda more: stores.writing(name, more=more),
        more=more,
        last=lambda more: _in_turn(request, stores.writing(name, more=more)),
    )
    await drained(request, lambda: work.run(items))
    return work.report


@asynccontextmanager
async def _in_turn(
    request: Request, writing: AbstractAsyncContextManager[CollectionWriter]
) -> AsyncIterator[CollectionWriter]:
    """Hold the collection's only writer. Raises CLIENT_GONE if the client leaves while it is
    waited for, so that what nobody waits for does not hold up others."""
    with anyio.CancelScope() as waiting:

        async def watch() -> None:
            await disconnected(request)
            waiting.cancel()

        async with running(watch()) as watching, writing as writer:
            watching.cancel()
            yield writer
    if waiting.cancelled_caught:
        raise Refusal(CLIENT_GONE, "The client disconnected while another one was writing.")


@router.get(
    "/collections/{name}/documents",
    dependencies=ASK,
    summary="List documents",
)
async def list_documents(
    request: Request,
    name: str,
    stores: Stores,
    after: Annotated[
        str, Query(max_length=LONGEST_ID, description="`next` of the page before.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
    text: Annotated[
        str,
        Query(
            max_length=LONGEST_ID,
            description="Only documents whose id contains this text in any case, or whose title "
            "has all its words.",
        ),
    ] = "",
    file: Annotated[
        str,
        Query(
            max_length=LONGEST_ID,
            description="Only the documents that the file of this name was cut into. A document "
            "belongs to it if its id is this name, alone or followed by `#` and a page or section.",
        ),
    ] = "",
) -> DocumentList:
    """List documents by their ids, a page at a time."""
    for field, given in (("after", after), ("text", text), ("file", file)):
        size = len(given.encode())
        if size > LONGEST_ID:
            raise InvalidRequest(
                f"{field}: {size:,} bytes in UTF-8; ids of documents have at most {LONGEST_ID}"
            )
    principals = tenant_of(request).principals
    heads = await stores.heads(name, after, limit + 1, principals, file=file, text=text)
    documents = [
        ListedDocument(
            id=head.document_id,
            title=head.passage.title,
            metadata=dict(head.passage.metadata),
            passages=head.parts,
        )
        for head in heads[:limit]
    ]
    return DocumentList(documents=documents, next=documents[-1].id if len(heads) > limit else None)


@router.get(
    "/collections/{name}/documents/{document_id:document_id}",
    dependencies=ASK,
    summary="Show a document",
)
async def get_document(
    request: Request, name: str, document_id: str, stores: Stores
) -> StoredDocument:
    """Return a stored document with its passages in order."""
    principals = tenant_of(request).principals
    records = await stores.document(name, document_id, principals)
    first = records[0].passage
    passages = [
        StoredPassage(passage_id=record.passage.passage_id, text=record.passage.text)
        for record in records
    ]
    return StoredDocument(
        id=document_id,
        title=first.title,
        metadata=dict(first.metadata),
        passages=passages,
        original=await stores.original(name, document_id, principals) is not None,
    )


@router.delete(
    "/collections/{name}/documents/{document_id:document_id}", status_code=204, dependencies=WRITE,
    response_class=Response, summary="Delete a document",
)  # fmt: skip
async def delete_document(request: Request, name: str, document_id: str, stores: Stores) -> None:
    """Delete a document and all its passages."""
    await stores.delete_document(name, document_id, tenant_of(request).principals)


Item = tuple[int, bytes | object]
Writing = Callable[[bool], "AbstractAsyncContextManager[CollectionWriter]"]


async def items_of(request: Request) -> AsyncIterator[Item]:
    """Yield index and value of each document: decoded JSON, a raw line, or BadDocument for a line
    too long."""
    kind = content_type(request, JSON, NDJSON)
    if kind == NDJSON:
        return _numbered_lines(request)
    return numbered(parse(DocumentBatch, await read_json(request)).documents)


async def numbered(documents: list[Any]) -> AsyncIterator[Item]:
    """Yield documents with their indices."""
    for pair in enumerate(documents):
        yield pair


async def _numbered_lines(request: Request) -> AsyncIterator[Item]:
    index = 0
    async for line in read_lines(request, LONGEST_LINE):
        if line is None:
            yield index, BadDocument(f"The line is longer than {LONGEST_LINE:,} bytes.")
        elif line.strip():
            yield index, line
        index += 1


class Ingest:
    """Read a bounded batch of distinct ids, then write it with the collection's only writer.

    A slow or stalled client therefore does not block other writers. With `more`, other requests
    will bring further documents. `last` holds the writer for the last batch, once everything has
    been read (default: as `writing`).
    """

    def __init__(
        self, writing: Writing, *, more: bool = False, last: Writing | None = None
    ) -> None:
        self.report = IngestReport()
        self._more = more
        self._writing = writing
        self._last = last or writing
        self._batch: dict[str, Document] = {}
        self._size = 0

    async def run(self, items: AsyncIterator[Item]) -> None:
        """Index the documents. Raises REQUEST_TIMEOUT if the client stalls, and CLIENT_GONE;
        complete lines are indexed."""
        try:
            await self._read(items)
        except Refusal as error:
            if error.kind in (CLIENT_GONE, REQUEST_TIMEOUT):
                await self._flush(more=True)
                done = self.report.indexed + self.report.unchanged
                error.detail += (
                    f" The {done:,} documents before it are indexed; send the remaining ones."
                )
            raise
        self._writing = self._last
        await self._flush(more=self._more)

    async def _read(self, items: AsyncIterator[Item]) -> None:
        async for index, item in items:
            document = self._parse(index, item)
            if document is None:
                if len(self.report.failed) < MOST_FAILED:
                    continue
                self._fail(
                    index + 1,
                    None,
                    "Too many documents are invalid. The documents from here on were not read.",
                )
                return
            full = len(self._batch) >= BATCH or self._size >= BATCH_BYTES
            if full or document.id in self._batch:
                await self._flush(more=True)
            self._batch[document.id] = document
            self._size += len(item) if isinstance(item, bytes) else 0

    def _parse(self, index: int, item: bytes | object) -> Document | None:
        value: object = item
        try:
            if isinstance(item, BadDocument):
                raise item
            if isinstance(item, bytes):
                value = orjson.loads(item)
            return parse_document(value)
        except orjson.JSONDecodeError as error:
            self._fail(index, None, f"The line is not valid JSON in UTF-8: {error.msg}")
        except BadDocument as error:
            given = value.get("id") if isinstance(value, dict) else None
            self._fail(index, given, str(error))
        return None

    def _fail(self, index: int, given: object, problem: str) -> None:
        name = str(given)[:200] if isinstance(given, str | int) else None
        self.report.failed.append(FailedDocument(index=index, id=name, problem=problem))

    async def _flush(self, *, more: bool) -> None:
        if more and not self._batch:
            return
        async with self._writing(more) as writer:
            if self._batch:
                indexed, unchanged = await writer.write(list(self._batch.values()))
                self.report.indexed += indexed
                self.report.unchanged += unchanged
        self._batch.clear()
        self._size = 0


FOLLOWED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": stream_content(
            "Events `progress` while the work runs: `data` has `stage`, `done` and `total`, which "
            "count passages. At the end `report`, with the body that is returned otherwise, or "
            "`error`, with a problem."
        )
    }
}

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)


@router.get(
    "/collections/{name}/check",
    dependencies=ADMINISTER,
    response_model=CollectionReport,
    responses=FOLLOWED,
    summary="Check a collection",
)
async def check_collection(
    request: Request, name: str, stores: Stores
) -> CollectionReport | Response:
    """Compare manifest, BM25 store and dense store, passage by passage. Waits for a running writer.
    With `Accept: text/event-stream`, the progress is streamed."""
    return await _reported(request, name, stores, repair=False)


@router.post(
    "/collections/{name}/repair",
    dependencies=ADMINISTER,
    response_model=CollectionReport,
    responses=FOLLOWED,
    summary="Repair a collection",
)
async def repair_collection(
    request: Request, name: str, stores: Stores
) -> CollectionReport | Response:
    """Repair a collection: rebuild what a server has lost, embed passages without a vector, remove
    passages without a document, and complete the manifest. An interrupted repair keeps its
    progress; call it again to continue. With `Accept: text/event-stream`, the progress is streamed;
    the repair is interrupted if the client disconnects."""
    return await _reported(request, name, stores, repair=True)


async def _reported(
    request: Request, name: str, stores: Collections, *, repair: bool
) -> CollectionReport | Response:
    async def work(follow: Follow) -> CollectionReport:
        report = await stores.check(name, repair=repair, follow=follow)
        if not tenant_of(request).principals >= EVERYTHING:
            for finding in (*report.findings, *report.left):
                finding.ids = []
        return report

    await stores.resolve(name)
    return await reported(request, work)


@router.put(
    "/collections/{name}/documents",
    dependencies=WRITE,
    responses=documented(*REFUSALS),
    openapi_extra=body_schema(DocumentBatch),
    summary="Replace all documents of a collection",
)
async def replace_documents(request: Request, name: str, stores: Stores) -> IngestReport:
    """Replace the collection's contents atomically. The new documents are indexed beside the old
    ones, which serve questions until one step switches over; questions in progress finish on the
    old contents. The current embedding settings are used. Invalid documents are reported and
    left out. An interrupted body changes nothing. NDJSON is read, too."""
    items = await items_of(request)
    await stores.resolve(name)
    return await drained(request, lambda: _replace(name, stores, items))


async def _replace(name: str, stores: Collections, items: AsyncIterator[Item]) -> IngestReport:
    async with stores.replacing(name) as writer:
        ingest = Ingest(lambda _: nullcontext(writer))
        try:
            await ingest.run(items)
        except Refusal as error:
            if error.kind is REQUEST_TIMEOUT:
                error.detail = f"Collection {name!r} is unchanged: {error.detail}"
            raise
        if len(ingest.report.failed) > MOST_FAILED:
            raise InvalidRequest(
                f"Collection {name!r} is unchanged: {MOST_FAILED:,} documents are invalid. "
                "Correct them and send all again."
            )
    return ingest.report


async def reported(request: Request, work: Callable[[Follow], Awaitable[B]]) -> B | Response:
    """Return the report of long work, or a stream of its progress if the client accepts one."""

    async def until_drained(follow: Follow) -> B:
        return await drained(request, lambda: work(follow))

    if EVENT_STREAM not in request.headers.get("accept", ""):
        return await until_drained(unseen)
    return EventStream(partial(followed, until_drained, request))


async def drained(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """Run the work until a shutdown cancels it, and then raise Draining."""
    with anyio.CancelScope() as scope, edge_of(request).drain.work(scope.cancel):
        return await work()
    raise Draining(DETAIL)
