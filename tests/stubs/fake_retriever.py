"""A small in-memory retriever: collections by name, passages by shared words, filters, a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from service.core.domain import Passage, ScoredPassage
from service.core.errors import InvalidRequest, NotFound
from service.retrieval.base import Filter, Permit, SearchRequest, SearchResult

NORMA = "Norma is an opera. It was composed by Vincenzo Bellini."
SAMPLE = (
    Passage("norma", "Norma", NORMA, {"year": 1831}),
    Passage("bellini", "Bellini", "Vincenzo Bellini was born in Catania.", {"year": 1801}),
    Passage("palermo", "Palermo", "Palermo is a city in Sicily.", {"year": 734}),
)


class FakeRetriever:
    """Every passage matches; those sharing more words with the query come first."""

    def __init__(
        self,
        collections: Mapping[str, Sequence[Passage]] | None = None,
        *,
        delay: float = 0.0,
        missing: tuple[str, ...] = (),
        failure: Exception | None = None,
    ) -> None:
        self.collections = collections or {"sample": SAMPLE}
        self.delay = delay
        self.missing = missing
        self.failure = failure
        self.requests: list[SearchRequest] = []

    async def search(self, request: SearchRequest) -> SearchResult:
        self.requests.append(request)
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        words = set(request.query.casefold().split())
        found = [p for p in self.collections[request.collection] if _passes(p, request.filter)]
        found = [p for p in found if p.passage_id not in request.exclude]
        found.sort(key=lambda p: -len(words & set(p.text.casefold().split())))
        hits = [ScoredPassage(p, rank, 1 / rank) for rank, p in enumerate(found, 1)]
        return SearchResult(tuple(hits[: request.top_k]), self.missing)

    async def check_request(self, collection: str | None, filter: Filter, permit: Permit) -> str:
        if collection is not None:
            permit(collection)
        name = collection or ("default" if "default" in self.collections else "sample")
        permit(name)
        if name not in self.collections:
            raise NotFound(f"there is no collection {name[:80]!r}")
        fields = {field for passage in self.collections[name] for field in passage.metadata}
        if unknown := sorted(set(filter) - fields):
            raise InvalidRequest(f"filter: collection {name!r} has no field {unknown[0][:80]!r}")
        return name


def _passes(passage: Passage, wanted: Filter) -> bool:
    return all(passage.metadata.get(name) in values for name, values in wanted.items())
