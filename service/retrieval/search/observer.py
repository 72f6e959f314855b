"""What retrieval reports to the metrics."""

from __future__ import annotations

from typing import Protocol

from service.retrieval.search.breaker import BreakerState


class SearchObserver(Protocol):
    def search(self, backend: str, seconds: float, failed: bool) -> None:
        """A call of a backend has ended, including its retries and its wait for a place."""

    def retried(self, backend: str) -> None:
        """A call has failed and is retried."""

    def breaker(self, backend: str, state: BreakerState) -> None:
        """The circuit breaker of a backend has changed its state."""

    def cache(self, hit: bool) -> None:
        """The cache of query embeddings was looked up."""


class Silent:
    """Observes nothing."""

    def search(self, backend: str, seconds: float, failed: bool) -> None: ...

    def retried(self, backend: str) -> None: ...

    def breaker(self, backend: str, state: BreakerState) -> None: ...

    def cache(self, hit: bool) -> None: ...
