"""The `worker_extension_cls`: the methods that the API server calls in every worker by
`collective_rpc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.vllm_plugin.packets import Packer, Packet, rows_of
from service.vllm_plugin.tap import TAP, Tap


class SignalsExtension:
    """Mixed into vLLM's worker class, of which it uses nothing."""

    def revelator_start(self) -> dict[str, Any]:
        """Return the obstacle to signals, if any, and the rank's number of heads."""
        return {"obstacle": TAP.obstacle, "heads": TAP.heads}

    def revelator_fetch(
        self, release: Sequence[str], rows: Sequence[tuple[str, Sequence[int]]]
    ) -> dict[str, Any]:
        return EXCHANGE.fetch(release, rows)


class WorkerExchange:
    """A worker's side of the exchange: its tap, and what was sent for each call."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._packers: dict[str, Packer] = {}

    def fetch(
        self, release: Sequence[str], rows: Sequence[tuple[str, Sequence[int]]]
    ) -> dict[str, Any]:
        """Return the new data of every tracked call, and the requested rows of drafts; frees
        `release`.
        """
        tap = self._tap
        tap.release(release)
        self._packers = {
            name: self._packers.get(name) or Packer(tracked) for name, tracked in tap.calls.items()
        }
        packets: dict[str, Packet] = {}
        for name, packer in self._packers.items():
            if (packet := packer.next()) is not None:
                packets[name] = packet
        return {
            "packets": packets,
            "rows": {n: rows_of(tap.calls[n], places) for n, places in rows if n in tap.calls},
            "heads": tap.heads,
            "calls": len(tap.calls),
            "bytes": tap.nbytes,
        }


EXCHANGE = WorkerExchange(TAP)
