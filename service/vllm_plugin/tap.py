"""Takes the signals of the steps of one worker process. It knows attention and logits, no runner.

A step has three moments, in this order: `see_batch` (the attention's metadata is built: which rows
belong to which place in the batch), `see_layer` (queries of the last layer, whose keys are in the
cache) and `finish_step` (logits, and which requests stand at which places). The queries are copied,
because a compiled graph may write over them.

Positions of a call: 0 to prompt - 1 are its prompt, followed by its draft's tokens. Row p is the
attention of the token at p over positions 0 to p; it predicts the token at p + 1. Each row is taken
once: a preempted request recomputes the same rows, which are skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from service.engines.attention import attention_rows, entropies, maxima_over, rows_per_block
from service.vllm_plugin import NAME
from service.vllm_plugin.layouts import Layout, block_size, find_layout
from service.vllm_plugin.sender import Packet, Sender

FORGOTTEN_S = 300.0  # a call that no step met is dropped after this
NOT_ATTACHED = (
    "the last layer's attention is of no backend that the plugin extends (latent attention, a "
    "state-space layer, or a backend of another kind)"
)
NOT_SEEN = "a step of vLLM passed the plugin's attention backend by"
NOT_YET = "the layout of the cache is not known yet: ask again, or /v1/revelator/info"
log = logging.getLogger(f"vllm.{NAME}")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request wants, as the middleware writes it into the sampling parameters.

    Packets go to the socket at `address`. A `score` reads its prompt; other requests write a draft
    of at most `tokens` tokens after it. `prompt` is its length. `attention` requests maxima, and
    rows: the part of each row of a draft from position `first` on, or the `rows` of a score.
    `ended` are calls that the worker can forget.
    """

    call: str
    address: str
    prompt: int
    tokens: int = 0
    score: bool = False
    attention: bool = True
    first: int = 0
    rows: tuple[int, ...] = ()
    ended: tuple[str, ...] = ()

    def to_args(self) -> dict[str, str]:
        return {NAME: WISH.dump_json(self).decode()}

    @staticmethod
    def of(params: Any) -> Wish | None:
        """Read `SamplingParams`. Raises ValueError if it is not of `to_args`."""
        args = params.extra_args
        return WISH.validate_json(args[NAME]) if args and NAME in args else None


WISH = TypeAdapter(Wish)


class Tracked:
    """One call on this worker. `error` is the reason why its signals are lost; it then takes no
    more.
    """

    def __init__(self, wish: Wish, error: str | None = None) -> None:
        self.wish = wish
        self.error = error
        self.seen = time.monotonic()
        self.next_row = 0 if wish.score else wish.prompt - 1
        self.next_number = wish.prompt - 1  # the row whose prediction's entropy comes next
        self._rows: dict[int, Tensor] = {}
        self._maxima: Tensor | None = None  # per head and token

    def missing_rows(self, first: int, count: int) -> range:
        """Return which of the rows just computed to take. A skipped row is a permanent error."""
        if self.error or not self.wish.attention:
            return range(0)
        if first > self.next_row:
            self.error = f"rows {self.next_row} to {first - 1} were never computed"
            return range(0)
        last = min(first + count, self.wish.prompt + self.wish.tokens)
        return range(max(first, self.next_row), max(last, self.next_row))

    def take_row(self, weights: Tensor, mean: Tensor) -> Packet:
        """Take the next row of a draft, (heads, row + 1), and its mean over heads."""
        row, self.next_row = self.next_row, self.next_row + 1
        packet: Packet = {"heads": weights.shape[0], "row": mean[self.wish.first :]}
        if row >= self.wish.prompt:
            packet["means"] = self._means(weights[:, None, self.wish.prompt : row])
        return packet

    def take_rows(self, weights: Tensor) -> Packet:
        """Take the next rows of a score, (heads, rows, row + rows); all are sent after the last."""
        begin, self.next_row = self.next_row, self.next_row + weights.shape[1]
        for row in self.wish.rows:
            if begin <= row < self.next_row:
                self._rows[row] = weights[:, row - begin, : row + 1].mean(dim=0)
        means = self._means(weights)
        if self.next_row < self.wish.prompt:
            return {}
        return {"heads": weights.shape[0], "means": means, "rows": self._rows}

    def _means(self, weights: Tensor) -> Tensor:
        """Take rows (heads, rows, tokens) into the maxima. Return their means over heads."""
        self._maxima = maxima_over(weights, self._maxima, torch)
        means: Tensor = self._maxima.mean(dim=0)
        return means


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

    def rows_begin(self, n: int) -> int:
        """Return where in the batch position 0 of request n would be."""
        return self.starts[n + 1] - self.ends[n]


class Tap:
    """`obstacle` says why there can be no signals at all, `failure` why there are no more: an error
    in this class ends the signals, never the engine's step.
    """

    def __init__(self, sender: Sender | None = None) -> None:
        self.calls: dict[str, Tracked] = {}
        self.obstacle: str | None = NOT_ATTACHED
        self.failure: str | None = None
        self.layout: Layout | None = None
        self._sender = sender or Sender()
        self._rank = (0, 1)
        self._watch: Callable[[bool], None] = lambda on: None
        self._size = 0
        self._scale = 0.0
        self._common: Any = None
        self._step: Step | None = None

    def attach(
        self,
        layer: Mapping[str, Any],
        obstacle: str | None,
        rank: tuple[int, int],
        watch: Callable[[bool], None],
    ) -> None:
        """Take note of the last layer: the arguments of its `AttentionImpl` on this rank, which is
        one of so many; `watch` says whether to show it here.
        """
        self._size, self._scale = layer["head_size"], float(layer["scale"])
        self.obstacle, self._rank, self._watch = obstacle, rank, watch

    def begin(self, wish: Wish) -> Tracked:
        """Track a request, or return what is tracked of one that was preempted."""
        now = time.monotonic()
        lost = [name for name, call in self.calls.items() if now - call.seen > FORGOTTEN_S]
        self.release([*wish.ended, *lost])
        if wish.call not in self.calls:
            self.calls[wish.call] = Tracked(wish, self.obstacle or self.failure)
            self._watch(True)
        return self.calls[wish.call]

    def release(self, calls: Iterable[str]) -> None:
        """Free all data of these calls, running or not."""
        for call in calls:
            self.calls.pop(call, None)
        if not self.calls:
            self._watch(False)

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
        starts, ends = common.query_start_loc_cpu, common.seq_lens_cpu_upper_bound
        table = common.block_table_tensor
        self._step = Step(starts.tolist(), ends.tolist(), table, query.clone(), cache)

    def finish_step(self, batch: Iterable[tuple[int, Tracked, Tensor]]) -> None:
        """Take and send what the step has of these requests, given with their places in the batch
        and the last row of their logits, (vocabulary,).
        """
        step, self._step = self._step, None
        live = sorted(
            (item for item in batch if self.calls.get(item[1].wish.call) is item[1]),
            key=lambda item: item[0],
        )
        if not live:
            return
        unknown = NOT_YET if step is not None and self.layout is None else None
        for _, tracked, _ in live:
            tracked.seen = time.monotonic()
            tracked.error = tracked.error or unknown
        packets = {} if self.obstacle or unknown else self.safely(self._take, step, live) or {}
        for _, tracked, _ in live:
            if error := tracked.error or self.failure:
                packets[tracked.wish.call] = {"error": error}
        here = {tracked.wish.call for _, tracked, _ in live}
        held = len(self.calls.keys() - here)
        for _, tracked, _ in live:
            if packet := packets.get(tracked.wish.call):
                packet |= {"call": tracked.wish.call, "rank": self._rank, "held": held}
                self._sender.put(tracked.wish.address, packet)

    def _take(
        self, step: Step | None, batch: Sequence[tuple[int, Tracked, Tensor]]
    ) -> dict[str, Packet]:
        if step is None or self.layout is None:
            raise LookupError(NOT_SEEN)
        packets: dict[str, Packet] = {tracked.wish.call: {} for _, tracked, _ in batch}
        singles: list[tuple[int, Tracked]] = []
        predicting: list[tuple[Tracked, Tensor]] = []
        for place, tracked, logits in batch:
            end, count = step.ends[place], step.starts[place + 1] - step.starts[place]
            wish = tracked.wish
            if not wish.score and end - 1 == tracked.next_number and not tracked.error:
                predicting.append((tracked, logits))
            if rows := tracked.missing_rows(end - count, count):
                if wish.score:
                    packets[wish.call] = self._take_block(tracked, place, rows, step, self.layout)
                else:
                    singles.append((place, tracked))
        if predicting:
            _take_numbers(predicting, packets)
        if singles:
            self._take_singles(singles, step, self.layout, packets)
        return packets

    def safely(self, take: Callable[..., Any], *args: Any) -> Any:
        if self.failure is None:
            try:
                return take(*args)
            except Exception as error:
                self.failure = f"the plugin failed ({type(error).__name__}: {error})"
                log.exception("token signals are disabled")
        return None

    def _take_singles(
        self,
        singles: Sequence[tuple[int, Tracked]],
        step: Step,
        layout: Layout,
        packets: Mapping[str, Packet],
    ) -> None:
        """Take the rows of drafts, one each, as a batch."""
        query, cache = step.query, step.cache
        places = [step.rows_begin(n) + tracked.next_row for n, tracked in singles]
        lengths = [tracked.next_row + 1 for _, tracked in singles]
        block = block_size(layout, cache, self._size)
        most = -(-max(lengths) // block)
        owners = torch.tensor([n for n, _ in singles], device=step.table.device)
        blocks = step.table[owners, :most].long()
        keys = layout(cache, blocks.flatten(), self._size)
        weights = decode_rows(
            query[torch.tensor(places, device=query.device)],
            keys.view(len(singles), most, *keys.shape[1:]),
            torch.tensor(lengths, device=query.device),
            self._scale,
        )
        means = weights.mean(dim=1)
        for number, ((_, tracked), length) in enumerate(zip(singles, lengths, strict=True)):
            packets[tracked.wish.call].update(
                tracked.take_row(weights[number, :, :length], means[number, :length])
            )

    def _take_block(
        self, tracked: Tracked, place: int, rows: range, step: Step, layout: Layout
    ) -> Packet:
        """Take the rows of a scored prompt, in blocks that bound the memory."""
        query, cache = step.query, step.cache
        count = -(-rows.stop // block_size(layout, cache, self._size))
        keys = layout(cache, step.table[place, :count].long(), self._size)
        keys = keys.float().permute(1, 2, 0, 3).reshape(keys.shape[1], self._size, -1)
        queries = query[step.rows_begin(place) + rows.start :][: len(rows)].float().transpose(0, 1)
        size = rows_per_block(query.shape[1], rows.stop)
        packet: Packet = {}
        for offset in range(0, len(rows), size):
            chunk = queries[:, offset : offset + size]
            first = rows.start + offset
            known = keys[:, :, : first + chunk.shape[1]]
            packet = tracked.take_rows(attention_rows(chunk, known, first, self._scale, torch))
        return packet


def decode_rows(query: Tensor, keys: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Return the attention weights of the last positions of several requests, in float32.

    `query` is (requests, heads, size). `keys` (requests, blocks, kv_heads, size, block) are
    gathered by the block table; all beyond `lengths` (requests,) is padding. Returns (requests,
    heads, blocks * block), which is 0 in the padding.
    """
    requests, blocks, kv_heads, size, block = keys.shape
    grouped = query.float().view(requests, 1, kv_heads, -1, size)
    scores = torch.matmul(grouped, keys.float()).permute(0, 2, 3, 1, 4)
    scores = scores.reshape(requests, -1, blocks * block) * scale
    places = torch.arange(blocks * block, device=keys.device)
    scores.masked_fill_((places >= lengths[:, None])[:, None], float("-inf"))
    return scores.softmax(dim=-1)


def _take_numbers(
    predicting: Sequence[tuple[Tracked, Tensor]], packets: Mapping[str, Packet]
) -> None:
    numbers = entropies(torch.stack([logits for _, logits in predicting]), torch)
    for column, (tracked, _) in enumerate(predicting):
        tracked.next_number += 1
        packets[tracked.wish.call]["number"] = numbers[:, column]


TAP = Tap()  # vLLM makes backends and processors itself; a worker process has one model
