"""Orders a fused ranking by a reranker's scores. If the reranker is unavailable, the order
stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from service.core.domain import ScoredPassage
from service.core.errors import RevelatorError
from service.core.settings import RerankerSettings, RetrievalSettings
from service.retrieval.embedding import passage_input
from service.retrieval.search.guard import Guard
from service.retrieval.search.observer import SearchObserver

BACKEND = "reranker"  # its name in the metrics

Passages = tuple[ScoredPassage, ...]


class Reranker(Protocol):
    """Scores passages. Raises RetrievalFailure, or BackendUnavailable if a retry may succeed."""

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return how well each passage answers the query, in their order; higher is better."""

    async def aclose(self) -> None:
        """Close connections. A second call does nothing."""


class Reranking:
    """Orders passages by the scores of `reranker`, called through a `Guard` like every backend."""

    def __init__(
        self,
        reranker: Reranker,
        own: RerankerSettings,
        settings: RetrievalSettings,
        observer: SearchObserver,
    ) -> None:
        self.top_n = own.top_n
        self._reranker = reranker
        self._guard = Guard(BACKEND, settings, observer)

    async def order(self, query: str, fused: Passages, top_k: int, until: float) -> Passages:
        """Return the best `top_k`, in the fused order while the reranker is unavailable."""
        if not fused:
            return fused
        texts = [passage_input(hit.passage) for hit in fused]
        try:
            scores = await self._guard.call(partial(self._reranker.scores, query, texts), until)
        except RevelatorError:
            return fused[:top_k]
        return by_score(fused, scores)[:top_k]

    async def aclose(self) -> None:
        await self._guard.aclose()
        await self._reranker.aclose()


def by_score(passages: Passages, scores: Sequence[float]) -> Passages:
    """Order passages by score, ties by passage id; ranks count from 1."""
    pairs = sorted(
        zip(passages, scores, strict=True),
        key=lambda pair: (-pair[1], pair[0].passage.passage_id),
    )
    return tuple(
        ScoredPassage(hit.passage, rank, score) for rank, (hit, score) in enumerate(pairs, 1)
    )
