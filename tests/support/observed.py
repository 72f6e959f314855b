"""Metrics that keep what they are told."""

from __future__ import annotations

from collections import Counter

from service.core.metrics import BreakerState, Counted, Metrics, Phase


class Observed(Metrics):
    """Of backends: searches, each with whether it failed, retries, states of breakers, and look-ups
    of query embeddings. Of workers: states, lost calls, and calls in progress."""

    def __init__(self) -> None:
        super().__init__()
        self.searches: list[tuple[str, bool]] = []
        self.retries: list[str] = []
        self.states: list[tuple[str, BreakerState]] = []
        self.asked: list[bool] = []
        self.phases: list[tuple[str, Phase]] = []
        self.failures: list[str] = []
        self.flights: Counter[str] = Counter()

    def search(self, backend: str, seconds: float, failed: bool) -> None:
        self.searches.append((backend, failed))

    def count(self, name: Counted, *labels: str, by: int = 1) -> None:
        if name == "retrieval_retries_total":
            self.retries.append(*labels)
        elif name == "worker_failures_total":
            self.failures.append(*labels)
        elif name == "cache_requests_total":
            self.asked.append(labels[-1] == "hit")

    def breaker(self, backend: str, state: BreakerState) -> None:
        self.states.append((backend, state))

    def worker_in_flight(self, worker: str, change: int) -> None:
        self.flights[worker] += change

    def worker_phase(self, worker: str, phase: Phase) -> None:
        self.phases.append((worker, phase))
