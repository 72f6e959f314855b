"""`POST /search`: the passages that a search finds, without an answer."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from service.answer.events import RetrievedPassage
from service.answer.request import MAX_TOP_K, Question, SearchFields
from service.api.access import require, tenant_of
from service.api.answer import enter
from service.api.edge import edge_of
from service.api.wire import REFUSALS, body_schema, documented, json_body
from service.core.domain import Model
from service.retrieval.base import SearchRequest

TOP_K: Final = 10


class SearchQuery(SearchFields):
    """What is searched, and where. It counts as a question of the key."""

    query: Question
    top_k: int = Field(TOP_K, ge=1, le=MAX_TOP_K, description="Number of passages.")


class FoundPassages(Model):
    """Passages by rank. `missing` names retrievers that were unavailable."""

    passages: list[RetrievedPassage]
    missing: list[str]


router = APIRouter(tags=["search"], dependencies=[Depends(require("ask"))])


@router.post(
    "/search",
    responses=documented(*REFUSALS, 504),
    openapi_extra=body_schema(SearchQuery),
    summary="Search passages",
)
async def search(
    request: Request, asked: Annotated[SearchQuery, Depends(json_body(SearchQuery))]
) -> FoundPassages:
    """Return the best passages of a collection, without answering. A search waits for its place
    among the running questions, and is limited by the same rates."""
    runtime = edge_of(request).runtime
    tenant = tenant_of(request)
    chosen = asked.filter or {}
    collections = runtime.retrieval.collections
    name = await collections.check_request(asked.collection, chosen, tenant.check_collection)
    wanted = SearchRequest(
        asked.query, asked.top_k, name, asked.retriever, chosen, principals=tenant.principals,
        widened=True,
    )  # fmt: skip
    place = await enter(request)
    try:
        found = await runtime.search(wanted)
    finally:
        place.release()
    passages = [RetrievedPassage.of(hit) for hit in found.passages]
    return FoundPassages(passages=passages, missing=list(found.missing))
