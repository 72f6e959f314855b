"""Limits of a pool, in seconds unless a field says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """`resolve_s`, `probe_s`: between DNS look-ups and between probes; the latter also limits a
    probe. `per_worker`: concurrent calls. `waiting`: calls that wait; further ones get 503, and so
    does a call that waits longer than `wait_s`, or `outage_s` while no worker is up. `eject_after`:
    consecutive failures. `eject_s`: the first ejection; doubles with each further one, up to a
    minute, until `forgive_s` of health. `slow_start_s`: until a new worker gets its full share.
    `retries`: how often a call is restarted at another worker.
    """

    resolve_s: float = 5.0
    probe_s: float = 2.0
    per_worker: int = 64
    waiting: int = 2048
    wait_s: float = 30.0
    outage_s: float = 5.0
    eject_after: int = 3
    eject_s: float = 1.0
    forgive_s: float = 60.0
    slow_start_s: float = 10.0
    retries: int = 3


LIMITS: Final = PoolLimits()
