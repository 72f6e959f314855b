"""Continuous batching on ONNX Runtime: rows join and leave between any two forward passes.

Prompts and texts are read one at a time, one chunk per step, into the slot behind those of the
running rows. A prompt is read from the end of its cached blocks; once complete, it is the next row.
Decoding is one forward pass for all rows. A row's tokens depend neither on the other rows nor on
what is cached.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.engines.attention_numpy import attention_rows, entropies, rows_per_block
from service.engines.batch.admission import BatchAdmission, advance
from service.engines.batch.constraints import SchemaCompiler
from service.engines.batch.prefixes import BLOCK, PrefixCache
from service.engines.batch.rows import BatchRow, ReadingRow, SignalRow
from service.engines.batch.worker import AnyJob, Call, deliver
from service.engines.embedded.network import Network
from service.engines.embedded.slots import Slots
from service.engines.encoding import PromptEncoder
from service.engines.signals import Span

CHUNK = 256  # tokens of one prefill pass, which an abort cannot interrupt
ROW_BYTES = 512 * 2**20  # bytes that the running rows may come to use; a longer row runs alone
PREFIX_BYTES = 96 * 2**20  # bytes of cached prompts, for each of the calls that run together
MOST_SHARES = 6
STEPS = 256  # number of steps over which the number of running calls is averaged


@dataclass(slots=True, eq=False)
class Prefill:
    """A prompt or text that is being read: `done` of its `ids` are in slot `slot`."""

    subject: BatchRow | ReadingRow
    ids: NDArray[np.int64]
    slot: int
    done: int = 0
    numbers: list[NDArray[np.float32]] = field(default_factory=list)


class Engine:
    """One model and its running batch; used by one thread only."""

    no_signals: str | None = None

    def __init__(
        self,
        name: str,
        network: Network,
        encoder: PromptEncoder,
        end_tokens: frozenset[int],
        *,
        constrained: bool = True,
    ) -> None:
        self.forward_passes = 0
        self.context_tokens = network.shape.context
        self._name = name
        self._network = network
        self._encoder = encoder
        self._scale = network.shape.head_size**-0.5
        self._admission = BatchAdmission(
            name,
            encoder,
            context_tokens=self.context_tokens,
            end_tokens=end_tokens,
            schemas=SchemaCompiler(encoder.backend, network.shape.vocabulary, sorted(end_tokens)),
            constrained=constrained,
        )
        self._slots = Slots(network.shape)
        self._prefixes: PrefixCache[NDArray[np.float32]] = PrefixCache(
            PREFIX_BYTES, lambda block: block.nbytes
        )
        self._pending: deque[BatchRow | ReadingRow] = deque()
        self._prefill: Prefill | None = None
        self._rows: list[BatchRow] = []
        self._busy = 1.0  # calls that run at the same time, averaged over the last steps

    @property
    def running(self) -> int:
        return len(self._pending) + (self._prefill is not None) + len(self._rows)

    def spans(self, text: str) -> tuple[Span, ...]:
        return tuple(self._encoder.encode_with_spans(text, bos=False)[1])

    def step(self, newcomers: list[AnyJob]) -> None:
        """Read one chunk of the oldest waiting job, and decode one token of every row."""
        rows, readings = self._admission.open(newcomers)
        self._pending += [*readings, *rows]
        self._share()
        self._drop([number for number, row in enumerate(self._rows) if row.job.cancelled])
        if prefill := self._next_prefill():
            self._read_on(prefill)
        if self._rows:
            self._decode()
        if not self.running:
            self._slots.clear()

    def fail(self, error: BaseException) -> None:
        waiting = [*self._pending, *([self._prefill.subject] if self._prefill else [])]
        jobs: list[Call] = [subject.job for subject in [*waiting, *self._rows]]
        self._pending.clear()
        self._prefill, self._rows = None, []
        self._slots.clear()
        self._prefixes.clear()
        deliver((job, error) for job in jobs)

    def _share(self) -> None:
        """Keep more prompts while more calls run, because most of them repeat a prompt of their
        own question.
        """
        self._busy += (self.running - self._busy) / STEPS
        self._prefixes.limit(int(PREFIX_BYTES * min(max(self._busy, 1.0), MOST_SHARES)))

    def _next_prefill(self) -> Prefill | None:
        """Return the job that is being read, or the one to read next, if there is room for it."""
        if self._prefill is not None and self._prefill.subject.job.cancelled:
            self._prefill = None
        while self._prefill is None and self._pending:
            subject = self._pending[0]
            if not (subject.job.cancelled or self._has_room(subject)):
                break
            self._pending.popleft()
            if not subject.job.cancelled:
                ids = subject.prompt if isinstance(subject, BatchRow) else subject.ids
                self._prefill = Prefill(subject, np.array(ids, np.int64), len(self._rows))
                if isinstance(subject, BatchRow):  # every query of a text is needed
                    self._recall(self._prefill, subject.blocks)
        return self._prefill

    def _has_room(self, subject: BatchRow | ReadingRow) -> bool:
        held = sum(row.most for row in self._rows)
        wanted = subject.most if isinstance(subject, BatchRow) else len(subject.ids)
        return not held or (held + wanted) * self._slots.position_bytes <= ROW_BYTES

    def _recall(self, prefill: Prefill, names: list[bytes]) -> None:
        """Begin a prompt with its cached blocks."""
        known = self._prefixes.take(names[: self._prefixes.count(names)])
        self._reserve(len(known) * BLOCK)
        for block in known:
            self._slots.put(prefill.slot, prefill.done, block)
            prefill.done += BLOCK

    def _read_on(self, prefill: Prefill) -> None:
        """Read the next chunk of a prompt or text. After its last chunk it becomes a row, or is
        delivered.
        """
        start, end = prefill.done, min(prefill.done + CHUNK, len(prefill.ids))
        self._reserve(end)
        tokens = end - start
        subject = prefill.subject
        every = isinstance(subject, ReadingRow) and subject.job.request.entropies
        wanted = np.arange(tokens) if every else np.array([tokens - 1])
        logits, queries = self._run(prefill.slot, prefill.ids[None, start:end], [start], wanted)
        prefill.done = end
        if isinstance(subject, ReadingRow):
            self._see(prefill, subject, queries[0], logits if every else None)
        if end == len(prefill.ids):
            self._prefill = None
            if isinstance(subject, ReadingRow):
                numbers = np.concatenate(prefill.numbers, axis=1).tolist() if every else None
                deliver([(subject.job, subject.result(numbers))])
            else:
                self._keep(subject, prefill.slot)
                self._show([subject], prefill.slot, queries[:, :, -1:])
                self._rows += [subject] if self._advance([subject], logits) else []

    def _keep(self, row: BatchRow, slot: int) -> None:
        self._prefixes.add(
            row.blocks, lambda n: self._slots.block(slot, n * BLOCK, (n + 1) * BLOCK)
        )

    def _see(
        self,
        prefill: Prefill,
        reading: ReadingRow,
        queries: NDArray[np.float32],
        logits: NDArray[np.float32] | None,
    ) -> None:
        """Pass attention and numbers of the newest chunk to a text that is scored."""
        heads, tokens, _ = queries.shape
        start = prefill.done - tokens
        size = rows_per_block(heads, prefill.done)
        for at in range(0, tokens, size):
            block = queries[:, at : at + size]
            keys = self._slots.keys(prefill.slot, start + at + block.shape[1])
            reading.see(attention_rows(block, keys, start + at, self._scale))
        if logits is not None:
            targets = prefill.ids[start + 1 : prefill.done + 1]
            prefill.numbers.append(entropies(logits[: len(targets)], targets))

    def _decode(self) -> None:
        lengths = [row.length for row in self._rows]
        self._reserve(max(lengths))
        ids = np.array([[row.token] for row in self._rows], np.int64)
        starts = [length - 1 for length in lengths]
        logits, queries = self._run(0, ids, starts, np.arange(len(ids)))
        self._show(self._rows, 0, queries)
        goes_on = self._advance(self._rows, logits)
        self._drop(sorted(set(range(len(self._rows))).difference(goes_on)))

    def _run(
        self, first: int, ids: NDArray[np.int64], starts: list[int], wanted: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.forward_passes += 1
        return self._network.run(self._slots, first, ids, np.array(starts, np.int64), wanted)

    def _show(self, rows: list[BatchRow], first: int, queries: NDArray[np.float32]) -> None:
        """Pass the attention of their newest token to the rows that need it."""
        for number, row in enumerate(rows):
            if isinstance(row, SignalRow) and row.signals.attention:
                keys = self._slots.keys(first + number, row.length)
                weights = attention_rows(queries[number], keys, row.length - 1, self._scale)
                row.see(weights[:, 0])

    def _advance(self, rows: list[BatchRow], logits: NDArray[np.float32]) -> list[int]:
        best = logits.argmax(axis=-1).tolist()
        return advance(self._name, rows, best, lambda number: logits[number])

    def _drop(self, leaving: list[int]) -> None:
        """Remove rows, `leaving` in ascending order; the last row moves into each gap."""
        for number in reversed(leaving):
            last = len(self._rows) - 1
            self._slots.move(last, number, self._rows[last].length - 1)
            self._rows[number] = self._rows[last]
            self._rows.pop()
        if self._prefill is not None:
            self._slots.move(self._prefill.slot, len(self._rows), self._prefill.done)
            self._prefill.slot = len(self._rows)

    def _reserve(self, room: int) -> None:
        """Reserve slots of `room` positions for all rows and for the prompt or text being read."""
        filled = [row.length - 1 for row in self._rows]
        if self._prefill is not None:
            filled.append(self._prefill.done)
        self._slots.reserve(room, filled)
