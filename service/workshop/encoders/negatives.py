"""Passages that a query finds and that do not serve it (METHODS.md §4.5, step 5)."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import numpy as np
from numpy.typing import NDArray

from service.core.domain import Passage as Served
from service.core.settings import RetrievalSettings
from service.retrieval.embedding import open_embedder, passage_input
from service.workshop.facts.corpora import Passage
from service.workshop.facts.nearest import Nearest

TOP = 10
RANK_CONSTANT = 60  # of reciprocal rank fusion


class Search:
    """BM25 and dense over passages in memory, fused by rank, as the service's hybrid search."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = list(passages)
        self.words = Nearest(passages)
        self.places = {passage.id: place for place, passage in enumerate(self.passages)}
        self.vectors = _embed([p.title for p in passages], [p.text for p in passages])

    def top(self, queries: Sequence[str], size: int = TOP) -> list[list[Passage]]:
        """The best `size` of each query."""
        vectors = _embed_queries(queries)
        return [
            self._one(query, vector, size) for query, vector in zip(queries, vectors, strict=True)
        ]

    def _one(self, query: str, vector: NDArray[np.float32], size: int) -> list[Passage]:
        near = np.argsort(-(self.vectors @ vector), kind="stable")[:TOP].tolist()
        said = [self.places[passage.id] for passage in self.words.search(query, TOP)]
        scores: dict[int, float] = {}
        for ranked in (said, near):
            for rank, place in enumerate(ranked, 1):
                scores[place] = scores.get(place, 0.0) + 1 / (RANK_CONSTANT + rank)
        best = sorted(scores, key=lambda place: -scores[place])[:size]
        return [self.passages[place] for place in best]


def _embed(titles: Sequence[str], texts: Sequence[str]) -> NDArray[np.float32]:
    served = [Served("", title, text) for title, text in zip(titles, texts, strict=True)]
    embedder = open_embedder(RetrievalSettings())
    return np.array(
        anyio.run(embedder.embed_passages, [passage_input(p) for p in served]), np.float32
    )


def _embed_queries(queries: Sequence[str]) -> NDArray[np.float32]:
    embedder = open_embedder(RetrievalSettings())
    return np.array(anyio.run(embedder.embed_queries, list(queries)), np.float32)
