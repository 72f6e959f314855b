"""The `Retriever` protocol, and the narrower `SearchStore` that a backend implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.domain import RetrieverName, ScoredPassage

FilterValue = str | int | float | bool
Filter = Mapping[str, tuple[FilterValue, ...]]


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One retrieval: at most `top_k` passages of `collection` for `query`.

    `filter` keeps passages whose metadata field has one of the values, for every field named.
    Passages whose id is in `exclude` are left out before the cut to `top_k`.
    """

    query: str
    top_k: int
    collection: str
    retriever: RetrieverName = "hybrid"
    filter: Filter = field(default_factory=dict)
    exclude: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Passages in rank order (rank from 1), and what was out: `bm25`, `dense`, `index-incomplete`."""

    passages: tuple[ScoredPassage, ...]
    missing: tuple[str, ...] = ()


class Retriever(Protocol):
    """Raises `NotFound` for an unknown collection, `InvalidRequest` for an unknown filter field,
    `RetrievalFailure` when nothing that was asked for can be searched."""

    async def search(self, request: SearchRequest) -> SearchResult: ...

    async def search_many(self, requests: Sequence[SearchRequest]) -> list[SearchResult]: ...

    async def check_request(self, collection: str | None, filter: Filter) -> str:
        """Validate before any work; returns the resolved collection name.

        None resolves to `default` where it exists, else the shipped `sample`.
        """

    async def aclose(self) -> None: ...
