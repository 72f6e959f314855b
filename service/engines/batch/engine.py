"""Continuous batching: rows join and leave between any two forward passes.

Prompts and texts are read one at a time, one chunk per step, into the slot behind those of the
running rows. A prompt is read from the end of its cached blocks; once complete, it is the next row.
Decoding is one forward pass for all rows. A row's tokens depend neither on the other rows nor on
what is cached.

Automatic prefix caching: the states of a common beginning of prompts are computed once.

As in vLLM (Kwon et al. 2023, arXiv:2309.06180, section 4.4, "Shared prefix"), prompts are cut into
blocks of tokens. A block is identified by its own tokens and all tokens before it.
"""

from __future__ import annotations

import json
import mmap
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray
from tokenizers import Tokenizer

from service.core.onnx import open_onnx
from service.engines.attention_numpy import attention_rows, rows_per_block
from service.engines.batch.rows import (
    BatchAdmission,
    BatchRow,
    ReadingRow,
    SchemaCompiler,
    SignalRow,
    advance,
)
from service.engines.batch.worker import AnyJob, Call, deliver
from service.engines.embedded import (
    ENDS,
    IDS,
    LOGITS,
    POSITIONS,
    QUERIES,
    TOTAL,
    WANTED,
    EmbeddedCard,
    ModelShape,
    past,
    present,
)
from service.engines.encoding import PromptEncoder
from service.engines.signals import Span

if TYPE_CHECKING:
    from service.engines.local import TorchNetwork

BLOCK = 32  # tokens
States = TypeVar("States")


def block_names(prompt: Sequence[int]) -> list[bytes]:
    """Return one name per whole block: equal names mean equal tokens up to the block's end.

    The last token is in no block, because it must be computed to obtain the first output token.
    """
    names: list[bytes] = []
    name = b""
    for end in range(BLOCK, len(prompt), BLOCK):
        tokens = array("q", prompt[end - BLOCK : end]).tobytes()
        name = blake2b(name + tokens, digest_size=16).digest()
        names.append(name)
    return names


class PrefixCache(Generic[States]):
    """The blocks of the latest prompts, at most `most_bytes` of them.

    The least recently used are evicted first, and of one prompt the later blocks before the earlier
    ones. Each block's states must own their memory, `size` bytes.
    """

    def __init__(self, most_bytes: int, size: Callable[[States], int]) -> None:
        self.nbytes = 0
        self._most_bytes = most_bytes
        self._size = size
        self._blocks: OrderedDict[bytes, States] = OrderedDict()

    def count(self, names: Sequence[bytes]) -> int:
        """Return how many of a prompt's first blocks are cached."""
        unknown = (number for number, name in enumerate(names) if name not in self._blocks)
        return next(unknown, len(names))

    def take(self, names: Sequence[bytes]) -> list[States]:
        """Return the states of cached blocks, and mark them as most recently used."""
        for name in reversed(names):
            self._blocks.move_to_end(name)
        return [self._blocks[name] for name in names]

    def add(self, names: Sequence[bytes], states: Callable[[int], States]) -> None:
        """Cache the blocks of a prompt; `states(n)` is called for those that are not cached yet."""
        for number in reversed(range(len(names))):
            name = names[number]
            if name in self._blocks:
                self._blocks.move_to_end(name)
                continue
            self._blocks[name] = states(number)
            self.nbytes += self._size(self._blocks[name])
            self._evict()

    def limit(self, most_bytes: int) -> None:
        """Change the maximum, and evict what exceeds it."""
        self._most_bytes = most_bytes
        self._evict()

    def _evict(self) -> None:
        while self.nbytes > self._most_bytes:
            self.nbytes -= self._size(self._blocks.popitem(last=False)[1])

    def clear(self) -> None:
        """Free the memory."""
        self._blocks.clear()
        self.nbytes = 0


ROOM: Final = 128  # fewest positions of a slot
GROWTH: Final = 1.5
# Positions that use memory may be so many times those that are kept, and so many more.
WASTE: Final = 1.5
SLACK: Final = 2048

Array = NDArray[Any]


class Slots:
    """The keys and values of each layer, (slots, kv_heads, room, size), in the order of the graph's
    inputs.

    Memory is used only for positions that were written. Where most of these are not needed any
    longer, the others are copied to fresh memory. Slots `first` to `first` + `count` are one block
    of memory, so any range of them is a batch.
    """

    def __init__(self, shape: ModelShape) -> None:
        self.position_bytes = 2 * shape.layers * shape.kv_heads * shape.head_size * 4
        self._shape = shape
        self._slots = 0
        self._room = 0
        self._buffers: list[Array] = []
        self._written: list[int] = []  # positions of each slot that use memory

    def reserve(self, room: int, filled: list[int]) -> None:
        """Provide a slot for each of `filled`, the number of its positions to keep, with at least
        `room` positions.
        """
        wasteful, room = self._note(filled), max(room, *filled)
        if len(filled) <= self._slots and room <= self._room and not wasteful:
            return
        slots, most = (0, 0) if wasteful else (self._slots, self._room)
        self._slots = slots if len(filled) <= slots else int(len(filled) * GROWTH)
        grown = most if room <= most else int(room * GROWTH)
        self._room = min(max(grown, ROOM), self._shape.context)
        self._move(filled)

    def _note(self, filled: list[int]) -> bool:
        """Note what is written. Returns whether much of it is not needed any longer."""
        self._written += [0] * (len(filled) - len(self._written))
        for slot, length in enumerate(filled):
            self._written[slot] = max(self._written[slot], length)
        return sum(self._written) > WASTE * sum(filled) + SLACK

    def _move(self, filled: list[int]) -> None:
        """Copy what is to be kept to fresh memory, one buffer after the other."""
        size = (self._slots, self._shape.kv_heads, self._room, self._shape.head_size)
        old, self._buffers = self._buffers[::-1], []
        for _ in range(2 * self._shape.layers):
            fresh = _empty(size)
            if old:  # there are no buffers at first
                source = old.pop()
                for slot, length in enumerate(filled[: len(source)]):
                    fresh[slot, :, :length] = source[slot, :, :length]
            self._buffers.append(fresh)
        self._written = list(filled)

    def views(self, first: int, count: int) -> list[Array]:
        return [buffer[first : first + count] for buffer in self._buffers]

    def keys(self, slot: int, length: int) -> Array:
        """Return the keys of the last layer: (kv_heads, length, size)."""
        keys: Array = self._buffers[-2][slot, :, :length]
        return keys

    def move(self, source: int, target: int, length: int) -> None:
        """Copy one slot to another."""
        if source != target and length:
            for buffer in self._buffers:
                buffer[target, :, :length] = buffer[source, :, :length]

    def block(self, slot: int, start: int, end: int) -> Array:
        """Copy the positions from `start` to `end`: (2 x layers, kv_heads, positions, size)."""
        return np.stack([buffer[slot, :, start:end] for buffer in self._buffers])

    def put(self, slot: int, start: int, block: Array) -> None:
        """Write a copied block at the positions from `start` on."""
        for buffer, states in zip(self._buffers, block, strict=True):
            buffer[slot, :, start : start + states.shape[1]] = states

    def clear(self) -> None:
        """Free the memory."""
        self._slots = self._room = 0
        self._buffers, self._written = [], []


def _empty(size: tuple[int, ...]) -> Array:
    """Return zeros in float32 that use memory page by page, where they are written.

    numpy asks the kernel for pages of 2 MB, of which one position of a slot would use a whole one.
    """
    memory = mmap.mmap(-1, prod(size) * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux, of which some kernels have no huge pages
        with suppress(OSError):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float32).reshape(size)


class Network:
    """An ONNX Runtime session. Raises the library's errors for a file that is not such a graph."""

    no_signals: str | None = None
    keeps_prefixes = True

    def __init__(self, model: Path, shape: ModelShape, *, threads: int) -> None:
        self.context, self.vocabulary = shape.context, shape.vocabulary
        self.scale = shape.head_size**-0.5
        self.slots = Slots(shape)
        self._heads, self._size = shape.heads, shape.head_size
        self._session = open_onnx(model, threads, spinning=True)
        pairs = [(layer, kind) for layer in range(shape.layers) for kind in ("key", "value")]
        self._cache_names = [(past(*pair), present(*pair)) for pair in pairs]

    def run(self, first: int, ids: Array, starts: Array, wanted: Array) -> tuple[Array, Array]:
        """Run `ids` (rows, tokens) in the slots from `first` on, which hold `starts` (rows,)
        positions each; the new positions are appended.

        Returns logits (wanted, vocabulary) of the places `wanted` in the flattened rows, and the
        last layer's queries (rows, heads, tokens, size).
        """
        rows, tokens = ids.shape
        ends = (starts + tokens - 1).astype(np.int32)
        binding = self._session.io_binding()
        binding.bind_cpu_input(IDS, ids)
        binding.bind_cpu_input(POSITIONS, starts[:, None] + np.arange(tokens))
        binding.bind_cpu_input(ENDS, ends)
        binding.bind_cpu_input(TOTAL, np.array(ends.max() + 1, np.int32))
        binding.bind_cpu_input(WANTED, wanted)
        binding.bind_output(LOGITS, "cpu")
        binding.bind_output(QUERIES, "cpu")
        for (taken, given), view in zip(
            self._cache_names, self.slots.views(first, rows), strict=True
        ):
            place = ("cpu", 0, np.float32, view.shape, view.ctypes.data)
            binding.bind_input(taken, *place)
            binding.bind_output(given, *place)
        self._session.run_with_iobinding(binding)
        logits, queries = (value.numpy() for value in binding.get_outputs()[:2])
        shaped = queries.reshape(rows, tokens, self._heads, self._size)
        return logits, shaped.transpose(0, 2, 1, 3)


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
    names: list[bytes] = field(default_factory=list)
    done: int = 0


class Engine:
    """One model and its running batch; used by one thread only."""

    def __init__(
        self,
        name: str,
        network: Network | TorchNetwork,
        encoder: PromptEncoder,
        end_tokens: frozenset[int],
        *,
        constrained: bool = True,
    ) -> None:
        self.forward_passes = 0
        self.no_signals = network.no_signals
        self.context_tokens = network.context
        self._name = name
        self._network = network
        self._encoder = encoder
        self._admission = BatchAdmission(
            name,
            encoder,
            context_tokens=self.context_tokens,
            end_tokens=end_tokens,
            schemas=SchemaCompiler(encoder.backend, network.vocabulary, sorted(end_tokens)),
            constrained=constrained,
        )
        self._slots: Slots = network.slots
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
                # every query of a text is needed
                if isinstance(subject, BatchRow) and self._network.keeps_prefixes:
                    self._prefill.names = block_names(ids)
                    self._recall(self._prefill)
        return self._prefill

    def _has_room(self, subject: BatchRow | ReadingRow) -> bool:
        held = sum(row.most for row in self._rows)
        wanted = subject.most if isinstance(subject, BatchRow) else len(subject.ids)
        return not held or (held + wanted) * self._slots.position_bytes <= ROW_BYTES

    def _recall(self, prefill: Prefill) -> None:
        """Begin a prompt with its cached blocks."""
        known = self._prefixes.take(prefill.names[: self._prefixes.count(prefill.names)])
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
        wanted = np.array([tokens - 1])
        logits, queries = self._run(prefill.slot, prefill.ids[None, start:end], [start], wanted)
        prefill.done = end
        if isinstance(subject, ReadingRow):
            self._see(prefill, subject, queries[0])
        if end == len(prefill.ids):
            self._prefill = None
            if isinstance(subject, ReadingRow):
                deliver([(subject.job, subject.result())])
            else:
                self._keep(prefill)
                self._show([subject], prefill.slot, queries[:, :, -1:])
                self._rows += [subject] if self._advance([subject], logits) else []

    def _keep(self, prefill: Prefill) -> None:
        self._prefixes.add(
            prefill.names,
            lambda n: self._slots.block(prefill.slot, n * BLOCK, (n + 1) * BLOCK),
        )

    def _see(self, prefill: Prefill, reading: ReadingRow, queries: NDArray[np.float32]) -> None:
        """Pass the attention of the newest chunk to a text that is scored."""
        heads, tokens, _ = queries.shape
        start = prefill.done - tokens
        size = rows_per_block(heads, prefill.done)
        for at in range(0, tokens, size):
            block = queries[:, at : at + size]
            keys = self._slots.keys(prefill.slot, start + at + block.shape[1])
            reading.see(attention_rows(block, keys, start + at, self._network.scale))

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
        return self._network.run(first, ids, np.array(starts, np.int64), wanted)

    def _show(self, rows: list[BatchRow], first: int, queries: NDArray[np.float32]) -> None:
        """Pass the attention of their newest token to the rows that need it."""
        for number, row in enumerate(rows):
            if isinstance(row, SignalRow) and row.signals.attention:
                keys = self._slots.keys(first + number, row.length)
                weights = attention_rows(queries[number], keys, row.length - 1, self._network.scale)
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


class CompiledTokenizer:
    """`tokenizer.json` and the card's chat template.

    The template has the variables and functions of transformers: `messages`,
    `add_generation_prompt`, the special tokens by name, `raise_exception`, `strftime_now`, the
    filter `tojson`, and `{% generation %}`.
    """

    def __init__(self, backend: Tokenizer, card: EmbeddedCard) -> None:
        self.backend_tokenizer = backend
        self.chat_template = card.chat_template
        self.bos_token_id = card.start
        self.eos_token_id = card.ends[0] if card.ends else None
        self._special_tokens = card.special_tokens
        self._template = _environment().from_string(card.chat_template or "")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """Return the text of a chat; `variables` are passed to the template. Raises whatever the
        template raises.
        """
        if tokenize:
            raise ValueError("a chat is encoded by PromptEncoder, piece by piece")
        known = {**self._special_tokens, **variables}
        known |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        return self._template.render(known)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the tokens that training counts; here it has no
    effect.
    """

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise TemplateError(message)
