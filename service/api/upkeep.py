"""Operations on whole collections: replacing the documents, checking and repairing the stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from typing import Any, Final, TypeVar

import anyio
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from service.api.bodies import EVENT_STREAM, body_schema, stream_content
from service.api.documents import (
    ADMINISTER,
    MOST_FAILED,
    WRITE,
    Ingest,
    Item,
    Stores,
    items_of,
)
from service.api.event_stream import EventStream, followed
from service.api.problems import RequestTimeout, documented, request_id
from service.api.shutdown import DETAIL, Drain
from service.core.errors import Draining, InvalidRequest
from service.core.progress import Follow, unseen
from service.retrieval.collections.manifest import IngestReport

REFUSALS: Final = (401, 403, 404, 422, 429, 500, 503)
REPLACE_REFUSALS: Final = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503)

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


class Finding(BaseModel):
    """A difference between manifest and stores.

    `kind`: `stray` (passages that belong to no document), `lacking` (passages without a vector),
    `outdated` (passages with an outdated vector), `surplus` (vectors without a passage), `manifest`
    (its counts, content hash or fields differ from the BM25 store), `building` (an ingest was
    interrupted), `embedding` (embedded with other settings), `copy` (Qdrant's copy of the manifest
    differs), `lost` (a server no longer holds the collection, or files are damaged) or `digests`
    (those of the files are missing). `count` and the first few `ids` are set for the first four
    kinds; for `lost`, `count` is the number of passages.
    """

    kind: str
    detail: str
    count: int
    ids: list[str]


class CollectionReport(BaseModel):
    """The differences found and, after a repair, what was done and which differences are left."""

    collection: str
    documents: int
    passages: int
    vectors: int
    findings: list[Finding]
    done: list[str]
    left: list[Finding]


router = APIRouter(tags=["collections"])


@router.get(
    "/collections/{name}/check",
    dependencies=ADMINISTER,
    response_model=CollectionReport,
    responses=documented(*REFUSALS) | FOLLOWED,
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
    responses=documented(*REFUSALS) | FOLLOWED,
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
    request: Request, name: str, stores: Any, *, repair: bool
) -> CollectionReport | Response:
    async def work(follow: Follow) -> CollectionReport:
        check = lambda: stores.check(name, repair=repair, follow=follow)  # noqa: E731
        report = await _drained(request, check)
        return CollectionReport.model_validate(report, from_attributes=True)

    if EVENT_STREAM not in request.headers.get("accept", ""):
        return await work(unseen)
    await stores.resolve(name)
    return EventStream(followed(work, request_id(request)))


@router.put(
    "/collections/{name}/documents",
    dependencies=WRITE,
    responses=documented(*REPLACE_REFUSALS),
    openapi_extra=body_schema("DocumentBatch"),
    summary="Replace all documents of a collection",
)
async def replace_documents(request: Request, name: str, stores: Stores) -> IngestReport:
    """Replace the collection's contents atomically. The new documents are indexed beside the old
    ones, which serve questions until one step switches over; questions in progress finish on the
    old contents. The current embedding settings are used. Invalid documents are reported and
    left out. An interrupted body changes nothing. NDJSON is read, too."""
    items = await items_of(request)
    await stores.resolve(name)
    return await _drained(request, lambda: _replace(name, stores, items))


async def _replace(name: str, stores: Any, items: AsyncIterator[Item]) -> IngestReport:
    async with stores.replacing(name) as writer:
        ingest = Ingest(lambda _: nullcontext(writer))
        try:
            await ingest.run(items)
        except RequestTimeout as error:
            raise RequestTimeout(f"Collection {name!r} is unchanged: {error.detail}") from None
        if len(ingest.report.failed) > MOST_FAILED:
            raise InvalidRequest(
                f"Collection {name!r} is unchanged: {MOST_FAILED:,} documents are invalid. "
                "Correct them and send all again."
            )
    return ingest.report


async def _drained(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """Run the work until a shutdown cancels it, and then raise Draining."""
    drain: Drain = request.app.state.drain
    with anyio.CancelScope() as scope, drain.work(scope.cancel):
        return await work()
    raise Draining(DETAIL)
