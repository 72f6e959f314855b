"""The `Reranker` protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Reranker(Protocol):
    """Raises RetrievalFailure: BackendUnavailable where another try may help."""

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """How well each passage answers the query, in their order; higher is better."""

    async def aclose(self) -> None:
        """Ends connections; a second call does nothing."""
