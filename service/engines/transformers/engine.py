"""Continuous batching: rows join and leave between any two forward passes.

New rows are prefilled separately, padded on the right (causal attention never looks there), one
group of similar length per step, from the end of their cached prompt blocks. Their states then join
the running batch, right-aligned, so that decoding is one forward pass for all rows. In float32 a
row's tokens depend neither on the other rows nor on what is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from service.engines.batch.admission import BatchAdmission, advance
from service.engines.batch.constraints import SchemaCompiler
from service.engines.batch.prefixes import BLOCK, PrefixCache
from service.engines.batch.rows import BatchRow, ReadingRow, SignalRow
from service.engines.batch.worker import AnyJob, Call, deliver
from service.engines.encoding import PromptEncoder
from service.engines.signals import Span
from service.engines.transformers.cache import (
    Block,
    CachedRow,
    begin,
    block_bytes,
    copy_block,
    merge,
    padding_mask,
)
from service.engines.transformers.taps import RowTap, last_layer, make_tappable, score

PREFILL_TOKENS = 2048  # of one prefill pass, including padding; an abort cannot interrupt a pass
WASTE = 1.25  # limit of longest / shortest prompt in one prefill pass
PREFIX_BYTES = 512 * 2**20  # bytes of cached prompts
T = TypeVar("T")


class Engine:
    """One model and its running batch; used by one thread only."""

    def __init__(
        self, name: str, network: Any, encoder: PromptEncoder, *, constrained: bool = True
    ) -> None:
        self.forward_passes = 0
        self._name = name
        self._network = network
        self._encoder = encoder
        self._device: torch.device = network.device
        config = network.config.get_text_config(decoder=True)
        self.context_tokens: int = getattr(config, "max_position_embeddings", None) or 4096
        ends = _end_tokens(network, encoder.tokenizer)
        self._admission = BatchAdmission(
            name,
            encoder,
            context_tokens=self.context_tokens,
            end_tokens=ends,
            schemas=SchemaCompiler(encoder.backend, config.vocab_size, sorted(ends)),
            constrained=constrained,
        )
        self._prefixes: PrefixCache[Block] = PrefixCache(PREFIX_BYTES, block_bytes)
        self.no_signals = make_tappable(network)
        self._last_layer = last_layer(network)
        self._readings: list[ReadingRow] = []
        self._pending: list[BatchRow] = []
        self._rows: list[BatchRow] = []
        self._cache: Any = None
        self._width = 0

    @property
    def running(self) -> int:
        return len(self._readings) + len(self._pending) + len(self._rows)

    def spans(self, text: str) -> tuple[Span, ...]:
        return tuple(self._encoder.encode_with_spans(text, bos=False)[1])

    @torch.inference_mode()
    def step(self, newcomers: list[AnyJob]) -> None:
        """Score a group of texts, prefill a group of waiting prompts (their first token), and
        decode one token of the other rows.
        """
        rows, readings = self._admission.open(newcomers)
        self._pending += rows
        self._readings += readings
        self._read()
        self._pending = [row for row in self._pending if not row.job.cancelled]
        group = self._next_prefill()
        joining = self._prefill(group) if group else []
        self._pending = [row for row in self._pending if row not in group]
        kept = [n for n, row in enumerate(self._rows) if not row.job.cancelled]
        if joining or len(kept) < len(self._rows):
            self._rebuild(kept, joining)
        if self._rows:
            self._decode()

    def fail(self, error: BaseException) -> None:
        jobs: list[Call] = [row.job for row in self._pending + self._rows]
        jobs += [reading.job for reading in self._readings]
        self._readings = []
        self._pending, self._rows, self._cache, self._width = [], [], None, 0
        self._prefixes.clear()
        deliver((job, error) for job in jobs)

    def _read(self) -> None:
        """Score one group of waiting texts of similar length in one pass."""
        self._readings = [reading for reading in self._readings if not reading.job.cancelled]
        if group := _next_group(self._readings, lambda reading: len(reading.ids)):
            self._readings = [reading for reading in self._readings if reading not in group]
            self.forward_passes += 1
            results = score(self._network, group)
            deliver((r.job, result) for r, result in zip(group, results, strict=True))

    def _next_prefill(self) -> list[BatchRow]:
        """Return the next rows to prefill: equally many cached blocks, similar remaining length,
        and different next blocks, because rows with the same next block wait until the first of
        them has computed it.
        """
        known = {row: self._prefixes.count(row.blocks) for row in self._pending}
        apart: dict[Any, BatchRow] = {}
        for row, blocks in known.items():
            if blocks == known[self._pending[0]]:
                apart.setdefault(row.blocks[blocks] if blocks < len(row.blocks) else row, row)
        return _next_group([*apart.values()], lambda row: len(row.prompt) - known[row] * BLOCK)

    def _prefill(self, rows: list[BatchRow]) -> list[tuple[BatchRow, CachedRow]]:
        """Compute the first tokens of `rows`. Returns the rows that continue, with their states."""
        lengths = [len(row.prompt) for row in rows]
        blocks = self._prefixes.count(rows[0].blocks)
        start = blocks * BLOCK
        cache = begin([self._prefixes.take(row.blocks[:blocks]) for row in rows], max(lengths))
        ids = torch.zeros(len(rows), max(lengths) - start, dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : lengths[number] - start] = torch.tensor(row.prompt[start:])
        ends = sorted(set(lengths))
        tap = self._tap((row, n, row.length - 1 - start, 0) for n, row in enumerate(rows))
        logits = self._forward(
            ids, cache, logits_to_keep=torch.tensor(ends, device=self._device) - 1 - start, tap=tap
        )
        places = torch.tensor([ends.index(length) for length in lengths], device=self._device)
        last = logits[torch.arange(len(rows), device=self._device), places]
        places_of = [CachedRow(cache, n, 0, length) for n, length in enumerate(lengths)]
        for row, place in zip(rows, places_of, strict=True):
            self._prefixes.add(row.blocks, partial(_copy, place))
        goes_on = self._advance(rows, last)
        return [(rows[n], places_of[n]) for n in goes_on]

    def _decode(self) -> None:
        ids = torch.tensor([[row.token] for row in self._rows])
        positions = torch.tensor([[row.length - 1] for row in self._rows], device=self._device)
        width = self._width + 1
        mask = padding_mask([row.length for row in self._rows], width, self._device)
        tap = self._tap((row, n, 0, width - row.length) for n, row in enumerate(self._rows))
        logits = self._forward(
            ids, self._cache, position_ids=positions, attention_mask=mask, tap=tap
        )
        self._width = width
        goes_on = self._advance(self._rows, logits[:, -1])
        if len(goes_on) < len(self._rows):
            self._rebuild(goes_on, [])

    def _tap(self, places: Iterable[tuple[BatchRow, int, int, int]]) -> RowTap | None:
        """Return a tap for the rows that need attention: (row, place in the batch, query, first
        key).
        """
        wanted = [
            (row, number, query, key)
            for row, number, query, key in places
            if isinstance(row, SignalRow) and row.signals.attention
        ]
        return RowTap(self._last_layer, wanted) if wanted else None

    def _forward(
        self, ids: Tensor, cache: Any, *, tap: RowTap | None = None, **options: Any
    ) -> Tensor:
        self.forward_passes += 1
        if tap is not None:
            options["tap"] = tap
        output = self._network(
            input_ids=ids.to(self._device), past_key_values=cache, use_cache=True, **options
        )
        return output.logits.float()  # type: ignore[no-any-return]

    def _advance(self, rows: list[BatchRow], logits: Tensor) -> list[int]:
        best = logits.argmax(dim=-1).tolist()
        return advance(self._name, rows, best, lambda number: logits[number].cpu().numpy())

    def _rebuild(self, kept: list[int], joining: list[tuple[BatchRow, CachedRow]]) -> None:
        """Rebuild the batch from the rows `kept` and `joining`."""
        places = []
        for number in kept:
            start = self._width - (self._rows[number].length - 1)
            places.append(CachedRow(self._cache, number, start, self._width))
        rows = [self._rows[number] for number in kept] + [row for row, _ in joining]
        places += [place for _, place in joining]
        self._rows = rows
        self._cache = merge(places) if places else None
        self._width = max((place.end - place.start for place in places), default=0)


def _copy(place: CachedRow, block: int) -> Block:
    return copy_block(place._replace(start=block * BLOCK, end=(block + 1) * BLOCK))


def _next_group(waiting: list[T], length: Callable[[T], int]) -> list[T]:
    """Return the oldest row and rows of similar length, so that padding is cheap: one prefill
    pass.
    """
    group: list[T] = []
    shortest = longest = length(waiting[0]) if waiting else 0
    for row in waiting:
        low, high = min(shortest, length(row)), max(longest, length(row))
        fits = high <= WASTE * low and high * (len(group) + 1) <= PREFILL_TOKENS
        if fits or not group:
            group.append(row)
            shortest, longest = low, high
    return group


def _end_tokens(network: Any, tokenizer: Any) -> frozenset[int]:
    ends = network.generation_config.eos_token_id if network.can_generate() else None
    ends = ends if isinstance(ends, list) else [ends]
    return frozenset(token for token in [*ends, tokenizer.eos_token_id] if token is not None)
