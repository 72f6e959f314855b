"""What retrieval tells the metrics."""

from __future__ import annotations

from typing import Literal, Protocol

from service.retrieval.search.breaker import BreakerState

CacheName = Literal["query_embeddings", "search_results"]


class SearchObserver(Protocol):
    def search(self, backend: str, seconds: float, failed: bool) -> None:
        """One call of a backend ended, its retries and its wait for a place included."""

    def retried(self, backend: str) -> None:
        """A call failed and is tried once more."""

    def breaker(self, backend: str, state: BreakerState) -> None:
        """The state of a backend's circuit breaker is now this."""

    def cache(self, cache: CacheName, hit: bool) -> None:
        """A cache that is on was asked."""


class Silent:
    """Observes nothing."""

    def search(self, backend: str, seconds: float, failed: bool) -> None: ...

    def retried(self, backend: str) -> None: ...

    def breaker(self, backend: str, state: BreakerState) -> None: ...

    def cache(self, cache: CacheName, hit: bool) -> None: ...
