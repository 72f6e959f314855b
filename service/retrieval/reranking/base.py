"""The `Reranker` protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Reranker(Protocol):
    """Scores passages. Raises RetrievalFailure, or BackendUnavailable if a retry may help."""

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return how well each passage answers the query, in their order; higher is better."""

    async def aclose(self) -> None:
        """Close connections. A second call does nothing."""
