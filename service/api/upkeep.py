"""`/collections/{name}/check` and `/repair`: do a collection's manifest and stores agree."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from service.api.documents import Stores
from service.api.draining import DETAIL, Drain
from service.api.problems import documented
from service.api.security import require_key
from service.errors import Draining

REFUSALS: Final = (401, 403, 404, 422, 500, 503)

T = TypeVar("T")


class Finding(BaseModel):
    """`kind`: stray, lacking, outdated, surplus (passages; `count`, and the first few `ids`),
    manifest, building, embedding or copy."""

    kind: str
    detail: str
    count: int
    ids: list[str]


class CollectionReport(BaseModel):
    """What differs, and of a repair what was done and what is left."""

    collection: str
    documents: int
    passages: int
    vectors: int
    findings: list[Finding]
    done: list[str]
    left: list[Finding]


router = APIRouter(tags=["collections"], dependencies=[Depends(require_key)])


@router.get("/collections/{name}/check", responses=documented(*REFUSALS))
async def check_collection(request: Request, name: str, stores: Stores) -> CollectionReport:
    """Compare manifest, BM25 store and dense store, passage by passage. Waits for a writer."""
    report = await _drained(request, lambda: stores.check(name))
    return CollectionReport.model_validate(report, from_attributes=True)


@router.post("/collections/{name}/repair", responses=documented(*REFUSALS))
async def repair_collection(request: Request, name: str, stores: Stores) -> CollectionReport:
    """Embed what has no vector, remove what no document has, complete the manifest. What it did
    before it was cut off stays done; call it again."""
    report = await _drained(request, lambda: stores.check(name, repair=True))
    return CollectionReport.model_validate(report, from_attributes=True)


async def _drained(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """Cut off when the server goes down. Raises Draining then."""
    drain: Drain = request.app.state.drain
    with anyio.CancelScope() as scope, drain.work(scope.cancel):
        return await work()
    raise Draining(DETAIL)
