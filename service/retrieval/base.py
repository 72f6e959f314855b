"""The `Retriever` protocol, and the narrower `SearchStore` that a backend implements.

`Catalog` is what stands between them: it knows the collections and opens their stores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from service.domain import RetrieverName, ScoredPassage
from service.retrieval.embedding.contract import EmbeddingContract

FilterValue = str | int | float | bool
Filter = Mapping[str, tuple[FilterValue, ...]]
# How BM25 reads a query (METHODS.md §6 #30): `should` any term of the passage input, summed
# (HANRAG, Auto-RAG); `best_fields` the better of title and text, tie breaker 0.5 (DRAGIN).
QueryShape = Literal["should", "best_fields"]
SideName = Literal["bm25", "dense"]
TIE_BREAKER = 0.5  # of `best_fields`: the share of the worse field that counts


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One retrieval: at most `top_k` passages of `collection` for `query`.

    `filter` keeps passages whose metadata field has one of the values, for every field named.
    Passages whose id is in `exclude` are left out before the cut to `top_k`. A side that takes
    longer than `within_s` is out; one in `without` is out and is not asked. A `probe` is a look at
    the backends: it passes by breakers, caches and reranking, so that it decides nothing for
    questions.
    """

    query: str
    top_k: int
    collection: str
    retriever: RetrieverName = "hybrid"
    filter: Filter = field(default_factory=dict)
    exclude: frozenset[str] = frozenset()
    shape: QueryShape = "should"
    within_s: float = field(default=math.inf, compare=False)
    without: frozenset[SideName] = field(default=frozenset(), compare=False)
    probe: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Passages by rank (from 1), and what was out: `bm25`, `dense`, `index-incomplete`."""

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


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """What one store is asked. Lexical stores read `text`, dense ones `vector` (unit length)."""

    text: str
    top_k: int
    vector: Sequence[float] = ()
    filter: Filter = field(default_factory=dict)
    exclude: frozenset[str] = frozenset()
    shape: QueryShape = "should"


class SearchStore(Protocol):
    """One collection in one backend. Raises `RetrievalFailure` when the backend is out."""

    @property
    def backend(self) -> str:
        """Name in metrics: tantivy, elasticsearch, qdrant_edge, qdrant."""

    async def search(self, query: StoreQuery) -> list[ScoredPassage]:
        """Best passages, ties by passage id; empty when nothing matches."""


@dataclass(frozen=True, slots=True)
class OpenCollection:
    """The two stores of a collection. `incomplete`: an ingest is running or was cut short.

    `version` is never that of other contents, of this or any collection; None: unknown.
    """

    bm25: SearchStore
    dense: SearchStore
    embedding: EmbeddingContract
    incomplete: bool = False
    version: int | None = None


class Catalog(Protocol):
    """Knows the collections and lends their stores."""

    async def resolve(self, name: str | None) -> str:
        """The collection's name; None is `default` or `sample`. Raises `NotFound`."""

    async def metadata_fields(self, name: str) -> Sequence[str]:
        """Fields that a filter may name."""

    def lend(self, name: str) -> AbstractAsyncContextManager[OpenCollection]:
        """The stores stay open while they are lent. Raises `NotFound`, `StoreError`."""

    async def aclose(self) -> None: ...
