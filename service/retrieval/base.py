"""The `Retriever` protocol, and the narrower `SearchStore` that backends implement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, get_args

from service.core.domain import Passage, RetrieverName, ScoredPassage

FilterValue = str | int | float | bool
Filter = Mapping[str, tuple[FilterValue, ...]]
# How BM25 reads a query (METHODS.md §6 #30): `should` any term of the passage input, summed
# (HANRAG, Auto-RAG); `best_fields` the better of title and text, tie breaker 0.5 (DRAGIN).
QueryShape = Literal["should", "best_fields"]
SideName = Literal["bm25", "dense"]
SIDES: Final[tuple[SideName, ...]] = get_args(SideName)
# Of words: stemmed as in a language, without its stop words; or as they are (`simple`).
Analysis = Literal[
    "arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian",
    "italian", "norwegian", "portuguese", "romanian", "russian", "simple", "spanish", "swedish",
    "turkish",
]  # fmt: skip
# Returns if the caller may use the collection with this name, and raises otherwise.
Permit = Callable[[str], None]
TIE_BREAKER = 0.5  # of `best_fields`: the share of the worse field that counts

# Who may see a document. Its field `access` names those who may: one principal (a user or a group)
# or a list of them. Without the field, everyone who may use the collection sees it.
Principals = frozenset[str]
ACCESS: Final = "access"
EVERYTHING: Final[Principals] = frozenset("*")  # of the owner of the data, who sees all documents
NOBODY: Final[Principals] = frozenset()  # sees the documents without `access`


def may_see(principals: Principals, metadata: Mapping[str, Any]) -> bool:
    """Whether someone with these principals may see a document with this metadata."""
    if ACCESS not in metadata or principals >= EVERYTHING:
        return True
    named = metadata[ACCESS]
    try:
        return not principals.isdisjoint(named if isinstance(named, list) else (named,))
    except TypeError:  # an object, in a collection of a time when this field had no meaning
        return False


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One retrieval of at most `top_k` passages of `collection` for `query`.

    `filter` selects passages whose metadata field has one of the values, for every field named;
    only passages that `principals` may see are found. Passages with an id in `exclude` are removed
    before the cut to `top_k`. If the search is `widened`, `hybrid` searches twice for ten passages
    or more: the second time for the query with what the best passage is about.
    A side that takes longer than `within_s` is left out; sides in `without` are not searched. A
    `probe` only tests the backends: it bypasses circuit breakers, caches and reranking, so that it
    does not affect questions. `vector` is the query's, of unit length, in what a dense store is
    asked."""

    query: str
    top_k: int
    collection: str
    retriever: RetrieverName = "hybrid"
    filter: Filter = field(default_factory=dict)
    exclude: frozenset[str] = frozenset()
    shape: QueryShape = "should"
    principals: Principals = NOBODY
    widened: bool = False
    within_s: float = field(default=math.inf, compare=False)
    without: frozenset[SideName] = field(default=frozenset(), compare=False)
    probe: bool = field(default=False, compare=False)
    vector: Sequence[float] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Passages by rank (from 1), and what was unavailable: `bm25`, `dense`, `index-incomplete`."""

    passages: tuple[ScoredPassage, ...]
    missing: tuple[str, ...] = ()


def anyone(_: str) -> None:
    """The `Permit` of the user of this machine, who may use every collection."""


class Retriever(Protocol):
    """Searches collections. Raises `NotFound` for an unknown collection, and `RetrievalFailure` if
    no requested side can be searched."""

    async def search(self, request: SearchRequest) -> SearchResult: ...


Alter = Callable[[Retriever], Retriever]  # wraps the retriever of one question


class SearchStore(Protocol):
    """One collection in one backend. Raises `RetrievalFailure` if the backend is unavailable."""

    @property
    def backend(self) -> str:
        """Name in the metrics: tantivy, elasticsearch, qdrant_edge or qdrant."""

    async def search(self, request: SearchRequest) -> list[ScoredPassage]:
        """Return the best passages, ties ordered by passage id. Empty if nothing matches."""


def ranked(hits: Iterable[tuple[float, Passage]]) -> list[ScoredPassage]:
    """Rank passages by score; ties are broken by passage id."""
    best = sorted(hits, key=lambda hit: (-hit[0], hit[1].passage_id))
    return [ScoredPassage(passage, rank, score) for rank, (score, passage) in enumerate(best, 1)]
