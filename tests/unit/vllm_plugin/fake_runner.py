"""A model runner as the hooks see one, over made-up queries, keys and logits; one attention layer.

Positions of a request have fixed queries, keys and logits, so what the hooks take can be compared
with the whole matrix, however the rows are scheduled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from service.vllm_plugin.hooks import Hooks
from service.vllm_plugin.tracking import Wish

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


class FakeRunner:
    """`step` runs one batch: (request, rows) each, in that order."""

    def __init__(self) -> None:
        self.cache = torch.zeros(BLOCKS, KV_HEADS, BLOCK, 2 * SIZE)
        self.input_batch = SimpleNamespace(req_ids=[], num_computed_tokens_cpu=None)
        self.query_start_loc = SimpleNamespace(np=None)
        self.execute_model_state: Any = None
        self.lora_config: Any = None
        self.set_active_loras: Any = None
        self.model = SimpleNamespace(compute_logits=lambda hidden: hidden.clone())
        self.steps_of_vllm = 0
        self.writes_keys = True
        impl = SimpleNamespace(forward=lambda *args, **kwargs: args[1], scale=0.3)
        self.layer = SimpleNamespace(impl=impl, head_size=SIZE, num_heads=HEADS)
        self._free = list(range(1, BLOCKS))
        self._known: set[str] = set()
        self._finished: set[str] = set()
        self.hooks = Hooks(self, self.layer)
        probe = FakeRequest("probe", [1, 2, 3], 3, Wish("probe", score=True))
        self.step((probe, 3))  # as the plugin does at start
        self.finish(probe)
        self.hooks.tracker.release(["probe"])

    def execute_model(self, scheduled: Any) -> None:
        """vLLM's own part, which the hooks wrap."""
        self.steps_of_vllm += 1
        batch = scheduled.batch
        counts = [count for _, count in batch]
        self.input_batch.req_ids = [request.name for request, _ in batch]
        self.input_batch.num_computed_tokens_cpu = np.array([r.computed for r, _ in batch])
        self.query_start_loc.np = np.concatenate([[0], np.cumsum(counts)])
        rows = [range(r.computed, r.computed + count) for r, count in batch]
        slots = [self._slot(r, p) for (r, _), own in zip(batch, rows, strict=True) for p in own]
        key = torch.cat(
            [r.key[own.start : own.stop] for (r, _), own in zip(batch, rows, strict=True)]
        )
        for row, slot in enumerate(slots if self.writes_keys else []):
            self.cache[slot // BLOCK, :, slot % BLOCK, :SIZE] = key[row]
        query = torch.cat(
            [r.query[own.start : own.stop] for (r, _), own in zip(batch, rows, strict=True)]
        )
        widest = max(len(r.blocks) for r, _ in batch)
        table = torch.tensor([r.blocks + [0] * (widest - len(r.blocks)) for r, _ in batch])
        metadata = SimpleNamespace(slot_mapping=torch.tensor(slots), block_table=table)
        self.layer.impl.forward(None, query, key, None, self.cache, metadata)
        hidden = torch.cat(
            [r.logits[own.start : own.stop] for (r, _), own in zip(batch, rows, strict=True)]
        )
        self.model.compute_logits(hidden[np.cumsum(counts) - 1])
        self.execute_model_state = SimpleNamespace(hidden_states=hidden)

    def step(self, *batch: tuple[FakeRequest, int]) -> None:
        new = [request for request, _ in batch if request.name not in self._known]
        self._known |= {request.name for request in new}
        scheduled = SimpleNamespace(
            batch=batch,
            finished_req_ids=self._finished,
            num_scheduled_tokens={request.name: count for request, count in batch},
            scheduled_new_reqs=[_as_new(request) for request in new],
        )
        self._finished = set()
        self.execute_model_state = None
        self.hooks.execute_model(scheduled)
        for request, count in batch:
            request.computed += count

    def preempt(self, request: FakeRequest, cached: int = 0) -> None:
        """Take its blocks, but for those that a prefix cache of `cached` positions keeps."""
        request.computed = cached
        self._free += request.blocks[-(-cached // BLOCK) :]
        request.blocks = request.blocks[: -(-cached // BLOCK)]
        self._free.sort(reverse=True)  # other blocks than before

    def finish(self, request: FakeRequest) -> None:
        self._finished.add(request.name)
        self.preempt(request)

    def _slot(self, request: FakeRequest, position: int) -> int:
        while len(request.blocks) <= position // BLOCK:
            request.blocks.append(self._free.pop(0))
        return request.blocks[position // BLOCK] * BLOCK + position % BLOCK


def _as_new(request: FakeRequest) -> Any:
    most = request.length - len(request.prompt) + 1
    extra = request.wish.to_args() if request.wish else None
    params = SimpleNamespace(extra_args=extra, max_tokens=most)
    return SimpleNamespace(
        req_id=request.name, sampling_params=params, prompt_token_ids=request.prompt
    )
