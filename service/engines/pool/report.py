"""The reports of a pool on its workers: events for the metrics, and states on request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from service.engines.pool.member import Phase


class PoolObserver(Protocol):
    def worker_in_flight(self, worker: str, change: int) -> None:
        """Record that a call at a worker began (+1) or ended (-1)."""

    def worker_phase(self, worker: str, phase: Phase) -> None:
        """Record that the state of a worker changed."""

    def worker_gone(self, worker: str) -> None:
        """Record that a worker left the pool, after its last call."""

    def worker_failure(self, worker: str) -> None:
        """Record that a worker lost a call."""

    def call_resent(self) -> None:
        """Record that a call was repeated because its server had closed the connection."""


class _Unobserved:
    def worker_in_flight(self, worker: str, change: int) -> None:
        pass

    def worker_phase(self, worker: str, phase: Phase) -> None:
        pass

    def worker_gone(self, worker: str) -> None:
        pass

    def worker_failure(self, worker: str) -> None:
        pass

    def call_resent(self) -> None:
        pass


UNOBSERVED: Final[PoolObserver] = _Unobserved()


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The current state of one worker. `signals`: it provides token signals; `problem`: why it is
    not up, or why it provides none although Revelator's plugin runs in it.
    """

    name: str
    phase: Phase
    models: tuple[str, ...]
    version: str | None
    signals: bool
    calls: int
    problem: str | None


@runtime_checkable
class WorkerPool(Protocol):
    """An engine that consists of workers."""

    def workers(self) -> list[WorkerState]:
        """All known workers, by name."""
