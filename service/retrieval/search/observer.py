"""The interface through which retrieval reports to the metrics."""

from __future__ import annotations

from typing import Protocol

from service.retrieval.search.breaker import BreakerState


class SearchObserver(Protocol):
    def search(self, backend: str, seconds: float, failed: bool) -> None:
        """Record that a call of a backend ended, including its retries and its wait for a place."""

    def retried(self, backend: str) -> None:
        """Record that a call failed and is retried."""

    def breaker(self, backend: str, state: BreakerState) -> None:
        """Record that the circuit breaker of a backend changed its state."""

    def cache(self, hit: bool) -> None:
        """Record a lookup in the cache of query embeddings."""


class Silent:
    """Observes nothing."""

    def search(self, backend: str, seconds: float, failed: bool) -> None: ...

    def retried(self, backend: str) -> None: ...

    def breaker(self, backend: str, state: BreakerState) -> None: ...

    def cache(self, hit: bool) -> None: ...
