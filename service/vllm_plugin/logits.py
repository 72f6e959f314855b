"""A logits processor for both of vLLM's interfaces: says who stands where in a batch, and ends it.

Model runner V1 and V2 have an interface each, loaded from the same entry point. The processor is of
both, as far as the installed vLLM has them, and changes no logits.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor

from service.vllm_plugin import HEADER, NAME
from service.vllm_plugin.receiver import RECEIVER
from service.vllm_plugin.tap import TAP, Tracked, Wish

INTERFACES = (
    ("vllm.v1.sample.logits_processor", "AdapterLogitsProcessor"),
    ("vllm.v1.worker.gpu.sample.logits_processor", "LogitsProcessor"),
)


class OfV1:
    """vLLM's adapter calls what `new_req_logits_processor` returns, once a step for each such
    request, with the row of its logits.
    """

    tap = TAP
    req_info: dict[int, Any]  # the adapter's: what it calls, in this order, by place in the batch

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._rows: list[tuple[Tracked, Tensor]] = []

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError for a wish that our middleware, in this process, did not write."""
        if NAME not in (sampling_params.extra_args or {}):
            return
        try:
            wish = Wish.of(sampling_params)
        except ValueError:
            wish = None
        if wish is None or wish.call not in RECEIVER.calls:
            raise ValueError(f"`{NAME}` cannot be set here: use the header {HEADER}")
        if sampling_params.n != 1 or sampling_params.temperature != 0:
            raise ValueError("token signals need n = 1 and temperature = 0")

    def is_argmax_invariant(self) -> bool:
        """Greedy requests skip the processors that are."""
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[[Any, Tensor], Tensor] | None:
        wish = Wish.of(params)
        if wish is None:
            return None
        tracked = self.tap.begin(wish)

        def see(_: Any, row: Tensor) -> Tensor:
            self._rows.append((tracked, row))
            if len(self._rows) == len(self.req_info):
                rows, self._rows = self._rows, []
                places = zip(self.req_info, rows, strict=True)
                self.tap.finish_step([(place, *rest) for place, rest in places])
            return row

        return see


class OfV2:
    """Keeps who has which place among the requests, which is not their place in a batch."""

    tap = TAP

    def __init__(self, *_: Any) -> None:
        self._slots: dict[int, Tracked] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        self._slots.pop(req_idx, None)
        if (wish := Wish.of(sampling_params)) is not None:
            self._slots[req_idx] = self.tap.begin(wish)
        return wish is not None

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Called in steps with a request for which a processor said that it is needed."""
        slots = enumerate(ctx.idx_mapping_np.tolist())
        rows = [(n, self._slots[slot], logits[n]) for n, slot in slots if slot in self._slots]
        self.tap.finish_step(rows)
        return logits


def _class() -> type:
    """Return one class that both runners accept, whose instances are of the one that makes them."""
    interfaces = []
    for module, name in INTERFACES:
        try:
            interfaces.append(getattr(import_module(module), name))
        except (ImportError, AttributeError):
            continue

    def new(cls: type, *args: Any) -> Any:
        made_by_v1 = len(args) == 3  # (vllm_config, device, is_pin_memory)
        return object.__new__(cls if made_by_v1 or cls is not both else v2)

    both = type("SignalsProcessor", (OfV1, *interfaces), {"__new__": new})
    v2 = type("SignalsProcessorV2", (OfV2, both), {})
    return both


SignalsProcessor = _class()
