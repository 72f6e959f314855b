"""Takes the signals of the steps of one worker process. It knows attention and logits, no runner.

A step has three moments, in this order: `see_batch` (the attention's metadata is built: which rows
belong to which place in the batch), `see_layer` (queries of the last layer, whose keys are in the
cache) and `finish_step` (logits, and which requests stand at which places). A step without tracked
requests stores nothing. The queries are copied, because a compiled graph may write over them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from service.engines.attention_torch import attention_rows, decode_rows, entropies, rows_per_block
from service.vllm_plugin import NAME
from service.vllm_plugin.layouts import AttentionLayout, find_layout
from service.vllm_plugin.tracking import OfStep, Tracked, Wish

FORGOTTEN_S = 300.0  # a call that no step met, and no API server released, is dropped after this
UNKNOWN_LAYOUT = (
    "the attention keys just written were not found in the cache, whose layout is unknown; try "
    "another attention backend or --dtype"
)
NOT_ATTACHED = (
    "the last layer's attention is of no backend that the plugin extends (latent attention, a "
    "state-space layer, or a backend of another kind)"
)
NOT_SEEN = "a step of vLLM passed the plugin's attention backend by"
log = logging.getLogger(f"vllm.{NAME}")


@dataclass(slots=True)
class Step:
    """The batch of a step: request n has the rows starts[n] to starts[n + 1] - 1, the last of which
    is at position ends[n] - 1. `table` are the requests' blocks in `cache`.
    """

    starts: Sequence[int]
    ends: Sequence[int]
    table: Tensor
    query: Tensor
    cache: Tensor


@dataclass(frozen=True, slots=True)
class BatchPart:
    """A tracked request's stretch of a batch: `count` rows from `begin`, positions from `first`.

    `index` is the request's place in the batch.
    """

    tracked: Tracked
    index: int
    begin: int
    count: int
    first: int


class Tap:
    """`obstacle` says why there can be no signals at all, `failure` why there are no more: an error
    in this class ends the signals, never the engine's step.
    """

    def __init__(self) -> None:
        self.calls: dict[str, Tracked] = {}
        self.obstacle: str | None = NOT_ATTACHED
        self.failure: str | None = None
        self.layout: AttentionLayout | None = None
        self.heads = 0
        self._size = 0
        self._scale = 0.0
        self._common: Any = None
        self._step: Step | None = None

    def attach(self, layer: Mapping[str, Any], obstacle: str | None) -> None:
        """Take note of the last layer: the arguments of its `AttentionImpl` on this rank."""
        self.heads, self._size = layer["num_heads"], layer["head_size"]
        self._scale, self.obstacle = float(layer["scale"]), obstacle

    def begin(self, wish: Wish) -> Tracked:
        """Track a request, or return what is tracked of one that was preempted."""
        now = time.monotonic()
        self.release([n for n, each in self.calls.items() if now - each.seen > FORGOTTEN_S])
        if wish.call not in self.calls:
            self.calls[wish.call] = Tracked(wish, self.failure)
        return self.calls[wish.call]

    def release(self, calls: Iterable[str]) -> None:
        """Free all data of these calls, running or not."""
        for call in calls:
            self.calls.pop(call, None)

    @property
    def nbytes(self) -> int:
        return sum(tracked.nbytes for tracked in self.calls.values())

    def see_batch(self, common: Any) -> None:
        """`common` is vLLM's `CommonAttentionMetadata` of the last layer."""
        self._common = common

    def see_layer(self, query: Tensor, key: Tensor, cache: Tensor) -> None:
        common, self._common = self._common, None
        if common is not None:
            self.safely(self._see_layer, common, query, key, cache)

    def _see_layer(self, common: Any, query: Tensor, key: Tensor, cache: Tensor) -> None:
        if self.layout is None:
            self.layout = find_layout(cache, key, common.slot_mapping)
        if self.layout is None:
            self._give_up(UNKNOWN_LAYOUT)
            return
        starts, ends = common.query_start_loc_cpu, common.seq_lens_cpu_upper_bound
        table = common.block_table_tensor
        self._step = Step(starts.tolist(), ends.tolist(), table, query.clone(), cache)

    def finish_step(self, batch: Iterable[tuple[int, Tracked]], logits: Tensor) -> None:
        """Take what the step has of these requests, given with their places in the batch, where
        `logits` (requests, vocabulary) has their rows.
        """
        step, self._step = self._step, None
        live = sorted((n, each) for n, each in batch if self.calls.get(each.wish.call) is each)
        if live:
            self.safely(self._take, step, live, logits)

    def _take(
        self, step: Step | None, batch: Sequence[tuple[int, Tracked]], logits: Tensor
    ) -> None:
        if step is None or self.layout is None:
            self._give_up(NOT_SEEN)
            return
        parts = []
        for n, tracked in batch:
            count = step.starts[n + 1] - step.starts[n]
            tracked.seen = time.monotonic()
            parts.append(BatchPart(tracked, n, step.starts[n], count, step.ends[n] - count))
        drafts = [part for part in parts if part.tracked.lacks_number(part.first + part.count - 1)]
        if drafts:
            chosen = logits[torch.tensor([part.index for part in drafts], device=logits.device)]
            numbers = OfStep(entropies(logits if len(drafts) == len(logits) else chosen))
            for column, part in enumerate(drafts):
                part.tracked.numbers.append((numbers, column))
        wanted = [(p, rows) for p in parts if (rows := p.tracked.missing_rows(p.first, p.count))]
        if single := [each for each in wanted if not each[0].tracked.wish.score]:
            self._take_single(single, step, self.layout)
        for part, rows in wanted:
            if part.tracked.wish.score:
                self._take_block(part, rows, step, self.layout)

    def safely(self, take: Callable[..., Any], *args: Any) -> Any:
        if self.failure is None:
            try:
                return take(*args)
            except Exception as error:
                log.exception("token signals are disabled: the plugin failed")
                self._give_up(f"the plugin failed ({type(error).__name__}: {error})")
        return None

    def _give_up(self, failure: str) -> None:
        self.failure = failure
        for tracked in self.calls.values():
            tracked.error = tracked.error or failure

    def _take_single(
        self, wanted: Sequence[tuple[BatchPart, range]], step: Step, layout: AttentionLayout
    ) -> None:
        """Take the rows of drafts, one each, as a batch."""
        query, cache = step.query, step.cache
        places = torch.tensor(
            [part.begin + rows.start - part.first for part, rows in wanted], device=query.device
        )
        lengths = [rows.start + 1 for _, rows in wanted]
        block = layout.block_size(cache, self._size)
        most = -(-max(lengths) // block)
        owners = torch.tensor([part.index for part, _ in wanted], device=step.table.device)
        blocks = step.table[owners, :most].long()
        keys = layout.pick(cache, blocks.flatten(), self._size)
        weights = decode_rows(
            query[places],
            keys.view(len(wanted), most, *keys.shape[1:]),
            torch.tensor(lengths, device=query.device),
            self._scale,
        )
        means = weights.mean(dim=1)
        for number, ((part, _), length) in enumerate(zip(wanted, lengths, strict=True)):
            part.tracked.take_row(weights[number, :, :length], means[number, :length])

    def _take_block(
        self, part: BatchPart, rows: range, step: Step, layout: AttentionLayout
    ) -> None:
        """Take the rows of a scored prompt, in blocks that bound the memory."""
        query, cache = step.query, step.cache
        count = -(-rows.stop // layout.block_size(cache, self._size))
        keys = layout.pick(cache, step.table[part.index, :count].long(), self._size)
        keys = keys.permute(1, 2, 0, 3).reshape(keys.shape[1], self._size, -1)
        queries = query[part.begin - part.first + rows.start :][: len(rows)]
        size = rows_per_block(query.shape[1], rows.stop)
        for offset in range(0, len(rows), size):
            chunk = queries[offset : offset + size]
            first = rows.start + offset
            known = keys[:, :, : first + len(chunk)]
            part.tracked.take_rows(attention_rows(chunk, known, first, self._scale))


TAP = Tap()  # vLLM makes backends and processors itself; a worker process has one model
