"""What a pool tells the metrics of its workers."""

from __future__ import annotations

from typing import Final, Protocol

from service.generation.pool.health import Phase


class PoolObserver(Protocol):
    def worker_in_flight(self, worker: str, change: int) -> None:
        """Calls at a worker began (+1) or ended (-1)."""

    def worker_phase(self, worker: str, phase: Phase) -> None:
        """A worker came, was ejected, or goes."""

    def worker_failure(self, worker: str) -> None:
        """A worker lost a call."""


class _Unobserved:
    def worker_in_flight(self, worker: str, change: int) -> None:
        pass

    def worker_phase(self, worker: str, phase: Phase) -> None:
        pass

    def worker_failure(self, worker: str) -> None:
        pass


UNOBSERVED: Final[PoolObserver] = _Unobserved()
