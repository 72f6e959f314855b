"""A model runner as the tap sees one, over made-up queries, keys and logits; one attention layer.

Positions of a request have fixed queries, keys and logits, so what the tap takes can be compared
with the whole matrix, however the rows are scheduled.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from service.engines.signals import Maximum
from service.vllm_plugin.attention import extended
from service.vllm_plugin.logits import OfV2
from service.vllm_plugin.sender import Packet, Sender, encoded
from service.vllm_plugin.tap import Tap, Wish

HEADS, KV_HEADS, SIZE, BLOCK, VOCABULARY, BLOCKS = 4, 2, 8, 4, 768, 256


@dataclass
class FakeRequest:
    """`prompt` ids, then the ids it writes; `computed` positions lie in the cache."""

    name: str
    prompt: list[int]
    length: int
    wish: Wish | None = None
    seed: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.query = torch.randn(self.length, HEADS, SIZE, generator=generator)
        self.key = torch.randn(self.length, KV_HEADS, SIZE, generator=generator)
        self.logits = torch.randn(self.length, VOCABULARY, generator=generator) * 3

    @property
    def matrix(self) -> Tensor:
        """(heads, length, length) by the textbook."""
        keys = self.key.repeat_interleave(HEADS // KV_HEADS, dim=1)
        scores = torch.einsum("qhd,khd->hqk", self.query.double(), keys.double()) * 0.3
        causal = torch.ones(self.length, self.length).tril().bool()
        return scores.masked_fill(~causal, float("-inf")).softmax(-1).float()

    @property
    def numbers(self) -> tuple[Tensor, Tensor]:
        """Entropies and log-probabilities (rows, vocabulary)."""
        logs = self.logits.double().log_softmax(-1)
        return -(logs.exp() * logs).sum(-1).float(), logs.float()

    def check(
        self,
        numbers: Sequence[tuple[float, float]],
        updates: Sequence[Sequence[Maximum]],
    ) -> None:
        """Hold a draft's entropies and log-probabilities, and its maxima as they stood after each
        row, against the whole matrix."""
        begin, matrix, (entropy, logs) = len(self.prompt), self.matrix, self.numbers
        rows = range(begin - 1, begin - 1 + len(numbers))
        expected = [(entropy[row], logs[row].max()) for row in rows]
        torch.testing.assert_close(torch.tensor(numbers), torch.tensor(expected))
        known: dict[int, float] = {}
        for end, of_row in enumerate(updates, start=1):
            for key, maximum in of_row:
                assert known.get(key) != maximum
                known[key] = maximum
            if of_row:
                assert sorted(known) == list(range(end - 1))
                own = matrix[:, begin : begin + end, begin : begin + end - 1].tril(-1)
                maxima = torch.tensor([known[key] for key in range(end - 1)])
                torch.testing.assert_close(maxima, own.amax(1).mean(0))


class PlainImplementation:
    """In the place of vLLM's: leaves the queries as its result."""

    def __init__(self, num_heads: int, head_size: int, scale: float) -> None:
        self.steps = 0

    def forward(
        self, layer: Any, query: Tensor, key: Tensor, value: Any, kv_cache: Tensor, *more: Any
    ) -> Tensor:
        self.steps += 1
        return query


class PlainBuilder:
    def __init__(self, layer_names: list[str], vllm_config: Any) -> None:
        self.layer_names, self.vllm_config = layer_names, vllm_config

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> Any:
        return common_attn_metadata


class PLAIN:
    get_impl_cls = staticmethod(lambda: PlainImplementation)
    get_builder_cls = staticmethod(lambda: PlainBuilder)


def config_with(layers: dict[str, Any], **changes: Any) -> Any:
    """A `VllmConfig`, as far as the plugin reads it."""
    parallel = dict.fromkeys(("pipeline", "data", "prefill_context", "decode_context"), 1)
    sizes = {f"{name}_parallel_size": size for name, size in parallel.items()}
    rank, ranks = changes.get("rank", (0, 1))
    sizes |= {"rank": rank, "tensor_parallel_size": ranks}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**(sizes | changes.get("parallel", {}))),
        speculative_config=changes.get("speculative"),
        compilation_config=SimpleNamespace(
            cudagraph_mode=SimpleNamespace(name=changes.get("graphs", "PIECEWISE")),
            static_forward_context=layers,
        ),
    )


class Sent(Sender):
    """Keeps the packets of each call instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: dict[str, list[Packet]] = defaultdict(list)

    def put(self, address: str, packet: Packet) -> None:
        self.packets[packet["call"]].append(json.loads(encoded(packet)))


class FakeRunner:
    """`step` runs one batch: (request, rows) each, in that order. The processor hears of slots, as
    from model runner V2."""

    def __init__(self, ranks: int = 1, rank: int = 0, sender: Sender | None = None) -> None:
        """`rank` of so many has its share of the heads."""
        self._share = ranks, rank
        self.cache = torch.zeros(BLOCKS, KV_HEADS // ranks, BLOCK, 2 * SIZE)
        self.writes_keys = True
        self.sent = Sent()
        self.tap = Tap(sender or self.sent)
        backend: Any = extended("PLAIN", PLAIN, self.tap)
        layers = {
            f"model.layers.{n}.attn": SimpleNamespace(
                impl=backend.get_impl_cls()(HEADS // ranks, SIZE, scale=0.3)
            )
            for n in range(2)
        }
        config = config_with(layers, rank=(rank, ranks))
        self.builder = backend.get_builder_cls()(list(layers), config)
        self.layers = [layer.impl for layer in layers.values()]
        self.processor = OfV2()
        self.processor.tap = self.tap
        self._free = list(range(1, BLOCKS))
        self._slots: list[str] = []
        probe = FakeRequest("probe", [1, 2, 3], 3, Wish("probe", "", 3, score=True))
        self.step((probe, 3))  # as the middleware does when it is asked for information
        self.finish(probe)
        self.tap.release(["probe"])

    def step(self, *batch: tuple[FakeRequest, int]) -> None:
        for request, _ in batch:
            if request.name not in self._slots:
                self._slots.append(request.name)
                asks = self.processor.add_request(len(self._slots) - 1, params_of(request))
                assert asks == (request.wish is not None)
        counts = [count for _, count in batch]
        rows = [range(r.computed, r.computed + count) for r, count in batch]
        slots = [self._slot(r, p) for (r, _), own in zip(batch, rows, strict=True) for p in own]
        key, query, logits = (
            torch.cat([getattr(r, name)[r.computed :][:count] for r, count in batch])
            for name in ("key", "query", "logits")
        )
        ranks, rank = self._share
        key, query = key.chunk(ranks, dim=1)[rank], query.chunk(ranks, dim=1)[rank]
        for row, slot in enumerate(slots if self.writes_keys else []):
            self.cache[slot // BLOCK, :, slot % BLOCK, :SIZE] = key[row]
        widest = max(len(r.blocks) for r, _ in batch)
        common = SimpleNamespace(
            query_start_loc_cpu=torch.tensor([0, *np.cumsum(counts)]),
            seq_lens_cpu_upper_bound=torch.tensor([own.stop for own in rows]),
            block_table_tensor=torch.tensor(
                [r.blocks + [0] * (widest - len(r.blocks)) for r, _ in batch]
            ),
            slot_mapping=torch.tensor(slots),
        )
        metadata = self.builder.build(0, common)
        for layer in self.layers:
            held = query.clone()
            assert layer.forward(None, held, key, None, self.cache, metadata) is held
            held.zero_()  # as a compiled graph may write over it
        last = logits[np.cumsum(counts) - 1]
        context = SimpleNamespace(
            idx_mapping_np=np.array([self._slots.index(request.name) for request, _ in batch])
        )
        if any(request.wish for request, _ in batch):  # else V2 does not call it
            assert self.processor.apply(last, context) is last
        for request, count in batch:
            request.computed += count

    def preempt(self, request: FakeRequest, cached: int = 0) -> None:
        """Take its blocks, but for those that a prefix cache of `cached` positions keeps."""
        if request.name in self._slots:
            self._slots[self._slots.index(request.name)] = ""
        request.computed = cached
        self._free += request.blocks[-(-cached // BLOCK) :]
        request.blocks = request.blocks[: -(-cached // BLOCK)]
        self._free.sort(reverse=True)  # other blocks than before

    def finish(self, request: FakeRequest) -> None:
        self.preempt(request)

    def _slot(self, request: FakeRequest, position: int) -> int:
        while len(request.blocks) <= position // BLOCK:
            request.blocks.append(self._free.pop(0))
        return request.blocks[position // BLOCK] * BLOCK + position % BLOCK


def params_of(request: FakeRequest) -> Any:
    extra = request.wish.to_args() if request.wish else None
    return SimpleNamespace(extra_args=extra, n=1, temperature=0.0)
