"""The `worker_extension_cls`: the methods that the API server calls in every worker by
`collective_rpc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.vllm_plugin.hooks import Hooks
from service.vllm_plugin.packets import Packer, Packet, rows_of
from service.vllm_plugin.support import obstacle


class SignalsExtension:
    """Mixed into vLLM's worker class, whose attributes (`model_runner`, …) it reads."""

    vllm_config: Any
    model_runner: Any
    use_v2_model_runner: bool
    _revelator: WorkerExchange

    def revelator_start(self) -> dict[str, Any]:
        """Install the hooks, once. Returns the obstacle, if any, and the rank's number of heads."""
        layer: Any = _last_attention(self.vllm_config)
        problem = obstacle(self.vllm_config, self.use_v2_model_runner, layer)
        if problem is not None:
            return {"obstacle": problem, "heads": 0}
        if not hasattr(self, "_revelator"):
            self._revelator = WorkerExchange(Hooks(self.model_runner, layer), layer.num_heads)
        return {"obstacle": None, "heads": layer.num_heads}

    def revelator_fetch(
        self, release: Sequence[str], rows: Sequence[tuple[str, Sequence[int]]]
    ) -> dict[str, Any]:
        """Return the new data of every tracked call, and the requested rows of drafts; frees
        `release`.
        """
        return self._revelator.fetch(release, rows)


class WorkerExchange:
    """A worker's side of the exchange: its hooks, and what was sent for each call."""

    def __init__(self, hooks: Hooks, heads: int) -> None:
        self.heads = heads
        self._hooks = hooks
        self._packers: dict[str, Packer] = {}

    def fetch(
        self, release: Sequence[str], rows: Sequence[tuple[str, Sequence[int]]]
    ) -> dict[str, Any]:
        tracker = self._hooks.tracker
        tracker.release(release)
        calls = tracker.calls
        self._packers = {
            name: self._packers.get(name) or Packer(tracked) for name, tracked in calls.items()
        }
        packets: dict[str, Packet] = {}
        for name, packer in self._packers.items():
            if (packet := packer.next()) is not None:
                packets[name] = packet
        asked = {name: rows_of(calls[name], places) for name, places in rows if name in calls}
        return {
            "packets": packets,
            "rows": asked,
            "heads": self.heads,
            "calls": len(calls),
            "bytes": tracker.nbytes,
            "failure": self._hooks.failure,
        }


def _last_attention(config: Any) -> Any:
    """Return the attention layer of the highest number, None if there is none of the usual kind."""
    from vllm.model_executor.layers.attention import Attention  # noqa: PLC0415
    from vllm.model_executor.models.utils import extract_layer_index  # noqa: PLC0415

    layers = config.compilation_config.static_forward_context
    usual = [
        (extract_layer_index(n), layer)
        for n, layer in layers.items()
        if isinstance(layer, Attention)
    ]
    last = max((extract_layer_index(name) for name in layers), default=-1)
    return next((layer for number, layer in usual if number == last), None)
