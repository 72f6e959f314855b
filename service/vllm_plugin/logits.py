"""A logits processor for both of vLLM's interfaces: says who stands where in a batch, and ends it.

Model runner V1 and V2 have an interface each, loaded from the same entry point. The processor is of
both, as far as the installed vLLM has them, and changes no logits.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from service.vllm_plugin import NAME
from service.vllm_plugin.tap import TAP
from service.vllm_plugin.tracking import Tracked, Wish

INTERFACES = ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor")


class Processor:
    tap = TAP

    def __init__(self, *_: Any) -> None:
        self._slots: dict[int, Tracked] = {}

    @classmethod
    def validate_params(cls, params: Any) -> None:
        """Raise ValueError for a request that asks for signals and not as our routes do."""
        try:
            wish = Wish.of(params.extra_args)
        except (TypeError, KeyError):
            raise ValueError(f"`{NAME}` cannot be set here: use /v1/{NAME}/signals") from None
        if wish is not None and params.n != 1:
            raise ValueError(f"requests with `{NAME}` have n = 1")

    def is_argmax_invariant(self) -> bool:
        """V1: greedy requests skip the processors that are."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """V1: follow who entered, left or moved."""
        if batch_update is not None:
            process_dict_updates = import_module(INTERFACES[0]).process_dict_updates
            process_dict_updates(
                self._slots, batch_update, lambda params, *_: self._tracked(params)
            )

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """V2: note who has this place among the requests, which is not its place in a batch."""
        tracked = self._tracked(sampling_params)
        if tracked is None:
            self._slots.pop(req_idx, None)
            return False
        self._slots[req_idx] = tracked
        return True

    def apply(self, logits: Tensor, ctx: Any = None) -> Tensor:
        """Both; `ctx`, of V2, has the slots in the order of the batch."""
        if self.tap.calls:
            order = self._slots if ctx is None else ctx.idx_mapping_np.tolist()
            places = zip(order, order, strict=True) if ctx is None else enumerate(order)
            batch = [(n, self._slots[slot]) for n, slot in places if slot in self._slots]
            self.tap.finish_step(batch, logits)
        return logits

    def _tracked(self, params: Any) -> Tracked | None:
        wish = Wish.of(params.extra_args)
        return None if wish is None else self.tap.begin(wish)


def _interfaces() -> tuple[type, ...]:
    found = []
    for module in INTERFACES:
        try:
            found.append(import_module(module).LogitsProcessor)
        except (ImportError, AttributeError):
            continue
    return tuple(found)


SignalsProcessor = type("SignalsProcessor", (Processor, *_interfaces()), {})
