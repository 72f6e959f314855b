"""Thin wrappers around methods of vLLM's model runner, which collect the signals.

Three methods are wrapped, on the objects themselves: `execute_model` (which requests come and go),
the last attention layer's `impl.forward` (queries and keys after their rotation, with the new keys
already in the cache) and `compute_logits`. A step without tracked requests runs vLLM's own code
after one look at the scheduler's output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from service.engines.attention_torch import attention_rows, decode_rows, entropies, rows_per_block
from service.vllm_plugin import NAME
from service.vllm_plugin.tracking import (
    BatchPart,
    OfStep,
    Tracker,
    Wish,
    parts_of,
    targets_of,
)

CHECKED = 8  # number of keys of the batch that are searched for


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    name: str
    pick: Callable[[Tensor, Tensor, int], Tensor]

    def block_size(self, cache: Tensor, size: int) -> int:
        none = torch.zeros(0, dtype=torch.long, device=cache.device)
        return self.pick(cache, none, size).shape[-1]


def _cpu_transposed(cache: Tensor, blocks: Tensor, size: int) -> Tensor:
    """(blocks, kv_heads, block, 2 * size): the first half keys as (size, block), `vec` kernels."""
    count, heads, block, _ = cache.shape
    halves = cache.view(count, heads, 2, size, block)
    return halves[:, :, 0].index_select(0, blocks)


def _cpu_plain(cache: Tensor, blocks: Tensor, size: int) -> Tensor:
    """(blocks, kv_heads, block, 2 * size): the first half keys as (block, size)."""
    count, heads, block, _ = cache.shape
    halves = cache.view(count, heads, 2, block, size)
    return halves[:, :, 0].index_select(0, blocks).transpose(2, 3)


def _packed(cache: Tensor, blocks: Tensor, size: int) -> Tensor:
    """(blocks, kv_heads, block, 2 * size): a key, then its value; FlashAttention of vLLM 0.32."""
    return cache[..., :size].index_select(0, blocks).transpose(2, 3)


def _stacked(cache: Tensor, blocks: Tensor, size: int) -> Tensor:
    """(2, blocks, block, kv_heads, size): FlashAttention of earlier versions."""
    return cache[0].index_select(0, blocks).permute(0, 2, 3, 1)


def _interleaved(cache: Tensor, blocks: Tensor, size: int) -> Tensor:
    """(blocks, 2, block, kv_heads, size): FlashInfer and Triton."""
    return cache[:, 0].index_select(0, blocks).permute(0, 2, 3, 1)


LAYOUTS = (
    AttentionLayout("cpu, transposed", _cpu_transposed),
    AttentionLayout("cpu, plain", _cpu_plain),
    AttentionLayout("packed", _packed),
    AttentionLayout("stacked", _stacked),
    AttentionLayout("interleaved", _interleaved),
)


def find_layout(cache: Tensor, key: Tensor, slots: Tensor) -> AttentionLayout | None:
    """Return the only layout in which `key` (rows, kv_heads, size) lies at `slots` (rows,), else
    None.

    A slot is block * block size + place in the block; negative slots are padding. Layouts differ in
    the place of a block's second key, so first keys alone may fit several of them.
    """
    real = (slots >= 0).nonzero().flatten()[:CHECKED]
    key, slots = key[real], slots[real]
    if not len(slots):
        return None
    fitting = [layout for layout in LAYOUTS if _fits(layout, cache, key, slots)]
    return fitting[0] if len(fitting) == 1 else None


def _fits(layout: AttentionLayout, cache: Tensor, key: Tensor, slots: Tensor) -> bool:
    size, heads = key.shape[-1], key.shape[-2]
    try:
        block = layout.block_size(cache, size)
        picked = layout.pick(cache, slots // block, size)
    except (RuntimeError, IndexError, ValueError):  # the cache has another shape
        return False
    if picked.shape[1:] != (heads, size, block):
        return False
    rows = torch.arange(len(slots), device=slots.device)
    return torch.equal(picked[rows, :, :, slots % block], key.to(picked.dtype))


log = logging.getLogger(f"vllm.{NAME}")
UNKNOWN_LAYOUT = (
    "the attention keys just written were not found in the cache of {backend}, whose layout is "
    "unknown; try another attention backend or --dtype"
)


class Hooks:
    """Tracks one model runner. `failure` says why it can provide no more signals: an error in this
    class ends the signals, never the engine's step.
    """

    def __init__(self, runner: Any, layer: Any) -> None:
        self.tracker = Tracker()
        self.failure: str | None = None
        self.layout: AttentionLayout | None = None
        self._runner = runner
        self._layer = layer
        self._active = False
        self._execute_model = runner.execute_model
        self._forward = layer.impl.forward
        self._compute_logits = runner.model.compute_logits
        runner.execute_model = self.execute_model
        layer.impl.forward = self.forward
        runner.model.compute_logits = self.compute_logits

    def execute_model(self, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        self._notice(scheduled)
        requests = self.tracker.requests
        self._active = bool(requests) and not requests.keys().isdisjoint(
            scheduled.num_scheduled_tokens
        )
        try:
            output = self._execute_model(scheduled, *args, **kwargs)
            if self._active and self._runner.execute_model_state is not None:
                hidden = self._runner.execute_model_state.hidden_states
                self._safely(self._score_rows, hidden)
            return output
        finally:
            self._active = False

    def _notice(self, scheduled: Any) -> None:
        for request in scheduled.finished_req_ids:
            self.tracker.end(request)
        for new in scheduled.scheduled_new_reqs:
            params = new.sampling_params
            if params is not None and params.extra_args:
                wish = Wish.of(params.extra_args)
                if wish is not None:
                    prompt = new.prompt_token_ids
                    tracked = self.tracker.begin(new.req_id, wish, prompt, params.max_tokens)
                    tracked.error = self.failure

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: Tensor,
        metadata: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        output = self._forward(layer, query, key, value, cache, metadata, *args, **kwargs)
        if self._active and metadata is not None:
            self._safely(self._take, query, key, cache, metadata)
        return output

    def _take(self, query: Tensor, key: Tensor, cache: Tensor, metadata: Any) -> None:
        wanted = [(part, rows) for part in self._parts() if (rows := _rows_of(part))]
        if wanted:
            if self.layout is None:
                self.layout = find_layout(cache, key, metadata.slot_mapping)
            if self.layout is None:
                self._give_up(UNKNOWN_LAYOUT.format(backend=type(self._layer.impl).__name__))
            else:
                self._take_rows(wanted, query, cache, metadata.block_table)

    def _safely(self, take: Callable[..., None], *args: Any) -> None:
        if self.failure is not None:
            return
        try:
            take(*args)
        except Exception as error:
            log.exception("token signals are disabled: the plugin failed in a step")
            self._give_up(f"the plugin failed in a step ({type(error).__name__}: {error})")

    def _give_up(self, failure: str) -> None:
        self.failure = failure
        for tracked in self.tracker.calls.values():
            tracked.error = tracked.error or failure

    def compute_logits(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        logits = self._compute_logits(hidden, *args, **kwargs)
        if self._active:
            self._safely(self._draft_numbers, logits)
        return logits

    def _draft_numbers(self, logits: Tensor | None) -> None:
        """Compute the entropies of the drafts' next tokens: one pass over the rows of the batch."""
        parts = [
            part
            for part in self._parts()
            if not part.tracked.wish.score and part.tracked.missing_numbers(part.first, part.count)
        ]
        if not parts:
            return
        step = None
        if logits is not None:
            places = torch.tensor([part.index for part in parts], device=logits.device)
            whole = len(parts) == len(logits)
            step = OfStep(entropies(logits if whole else logits[places]))
        for column, part in enumerate(parts):
            part.tracked.take_numbers(step, [column])

    def _score_rows(self, hidden: Tensor) -> None:
        """Compute the entropies inside scored prompts: one pass of the head over all their rows."""
        scores = [
            (part, rows)
            for part in self._parts()
            if part.tracked.wish.score
            and (rows := part.tracked.missing_numbers(part.first, part.count))
        ]
        if not scores:
            return
        chosen = [
            hidden[part.begin + rows.start - part.first :][: len(rows)] for part, rows in scores
        ]
        self._map_adapters(scores)
        logits = self._compute_logits(torch.cat(chosen))
        step = None
        if logits is not None:
            targets = torch.cat([targets_of(part.tracked, rows) for part, rows in scores])
            step = OfStep(entropies(logits, targets.to(logits.device)))
        column = 0
        for part, rows in scores:
            part.tracked.take_numbers(step, range(column, column + len(rows)))
            column += len(rows)

    def _map_adapters(self, scores: Sequence[tuple[BatchPart, range]]) -> None:
        """Map the head's rows to LoRA adapters for vLLM; the next step sets its own mapping
        again.
        """
        if not getattr(self._runner, "lora_config", None):
            return
        batch = self._runner.input_batch
        scheduled = np.diff(self._runner.query_start_loc.np[: len(batch.req_ids) + 1])
        counts = np.zeros_like(scheduled)
        for part, rows in scores:
            counts[part.index] = len(rows)
        self._runner.set_active_loras(batch, scheduled, counts)

    def _parts(self) -> list[BatchPart]:
        batch = self._runner.input_batch
        starts = self._runner.query_start_loc.np
        return parts_of(self.tracker.requests, batch.req_ids, starts, batch.num_computed_tokens_cpu)

    def _take_rows(
        self, wanted: Sequence[tuple[BatchPart, range]], query: Tensor, cache: Tensor, table: Tensor
    ) -> None:
        single = [(part, rows) for part, rows in wanted if not part.tracked.wish.score]
        if single:
            self._take_single(single, query, cache, table)
        for part, rows in wanted:
            if part.tracked.wish.score:
                self._take_block(part, rows, query, cache, table)

    def _take_single(
        self, wanted: Sequence[tuple[BatchPart, range]], query: Tensor, cache: Tensor, table: Tensor
    ) -> None:
        """Take the rows of drafts, one each, as a batch."""
        assert self.layout is not None
        size = self._layer.head_size
        places = torch.tensor(
            [part.begin + rows.start - part.first for part, rows in wanted], device=query.device
        )
        lengths = [rows.start + 1 for _, rows in wanted]
        block = self.layout.block_size(cache, size)
        most = -(-max(lengths) // block)
        owners = torch.tensor([part.index for part, _ in wanted], device=table.device)
        blocks = table[owners, :most].long()
        keys = self.layout.pick(cache, blocks.flatten(), size)
        weights = decode_rows(
            query[places],
            keys.view(len(wanted), most, *keys.shape[1:]),
            torch.tensor(lengths, device=query.device),
            self._layer.impl.scale,
        )
        means = weights.mean(dim=1)
        for number, ((part, _), length) in enumerate(zip(wanted, lengths, strict=True)):
            part.tracked.take_row(weights[number, :, :length], means[number, :length])

    def _take_block(
        self, part: BatchPart, rows: range, query: Tensor, cache: Tensor, table: Tensor
    ) -> None:
        """Take the rows of a scored prompt, in blocks that bound the memory."""
        assert self.layout is not None
        size = self._layer.head_size
        block = self.layout.block_size(cache, size)
        count = -(-rows.stop // block)
        keys = self.layout.pick(cache, table[part.index, :count].long(), size)
        keys = keys.permute(1, 2, 0, 3).reshape(keys.shape[1], size, -1)
        queries = query[part.begin - part.first + rows.start :][: len(rows)]
        step = rows_per_block(query.shape[1], rows.stop)
        for offset in range(0, len(rows), step):
            chunk = queries[offset : offset + step]
            first = rows.start + offset
            known = keys[:, :, : first + len(chunk)]
            part.tracked.take_rows(attention_rows(chunk, known, first, self._layer.impl.scale))


def _rows_of(part: BatchPart) -> range:
    return part.tracked.missing_rows(part.first, part.count)
