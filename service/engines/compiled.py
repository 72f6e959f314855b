"""A compiled model on ONNX Runtime: its network, and its tokenizer with the chat template."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray
from tokenizers import Tokenizer

from service.core.onnx import open_onnx
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

Array = NDArray[Any]
SLOTS: Final = 8  # calls that run together
KEPT: Final = 2048  # tokens of a prompt that are remembered
ALIGNED: Final = 1024  # positions, a multiple of which is a whole number of memory pages


class OnnxNetwork:
    """A graph whose cache is written in place. Raises the library's errors for a file that is not
    such a graph.

    Memory is used only for positions that were written, and is freed with their slot.
    """

    no_signals: str | None = None
    slots = SLOTS

    def __init__(self, model: Path, shape: ModelShape, *, threads: int) -> None:
        self.context, self.vocabulary = shape.context, shape.vocabulary
        self.scale = shape.head_size**-0.5
        self.position_bytes = 2 * shape.layers * shape.kv_heads * shape.head_size * 4
        self._heads, self._size = shape.heads, shape.head_size
        self._session = open_onnx(model, threads, spinning=True)
        pairs = [(layer, kind) for layer in range(shape.layers) for kind in ("key", "value")]
        self._names = [(past(*pair), present(*pair)) for pair in pairs]
        room = -(-shape.context // ALIGNED) * ALIGNED
        size = (SLOTS, shape.kv_heads, room, shape.head_size)
        self._memories = [_anonymous(4 * prod(size)) for _ in pairs]
        self._cache: list[Array] = [
            np.frombuffer(memory, np.float32).reshape(size) for memory in self._memories
        ]
        self._prompt: Sequence[int] = ()
        self.forget()

    def run(self, first: int, ids: Array, starts: Array, wanted: Array) -> tuple[Array, Array]:
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
        for (taken, given), cache in zip(self._names, self._cache, strict=True):
            states = cache[first : first + rows]
            place = ("cpu", 0, np.float32, states.shape, states.ctypes.data)
            binding.bind_input(taken, *place)
            binding.bind_output(given, *place)
        self._session.run_with_iobinding(binding)
        logits, queries = (value.numpy() for value in binding.get_outputs()[:2])
        shaped = queries.reshape(rows, tokens, self._heads, self._size)
        return logits, shaped.transpose(0, 2, 1, 3)

    def keys(self, slot: int, length: int) -> Array:
        keys: Array = self._cache[-2][slot, :, :length]
        return keys

    def recall(self, slot: int, prompt: Sequence[int]) -> int:
        pairs = zip(prompt, self._prompt, strict=False)
        same = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
        length = min(len(prompt), len(self._prompt)) if same is None else same
        for cache, states in zip(self._cache, self._states, strict=True):
            cache[slot, :, :length] = states[:, :length]
        return length

    def remember(self, slot: int, prompt: Sequence[int]) -> None:
        self._prompt = prompt[:KEPT]
        self._states = [cache[slot, :, : len(self._prompt)].copy() for cache in self._cache]

    def forget(self) -> None:
        self._prompt = ()
        self._states = [cache[0, :, :0] for cache in self._cache]

    def move(self, source: int, target: int, length: int) -> None:
        for cache in self._cache:
            cache[target, :, :length] = cache[source, :, :length]

    def free(self, slot: int) -> None:
        size = self._cache[0][0].nbytes
        with suppress(AttributeError, OSError):  # where the system cannot, memory is used again
            for memory in self._memories:
                memory.madvise(mmap.MADV_DONTNEED, slot * size, size)


def _anonymous(size: int) -> mmap.mmap:
    """Return memory that is used page by page, where it is written.

    Numpy asks the kernel for pages of 2 MB, of which one position of a slot would use a whole one.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux, of which some kernels have no huge pages
        with suppress(OSError):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


class CompiledTokenizer:
    """`tokenizer.json` and the card's chat template, a Jinja template with the variables `messages`
    and `add_generation_prompt`, and the special tokens by name.
    """

    def __init__(self, backend: Tokenizer, card: EmbeddedCard) -> None:
        self.backend_tokenizer = backend
        self.chat_template = card.chat_template
        self.bos_token_id = card.start
        self.eos_token_id = card.ends[0] if card.ends else None
        self._special_tokens = card.special_tokens
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(card.chat_template or "")

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


def open_tokenizer(file: Path, card: EmbeddedCard) -> CompiledTokenizer:
    return CompiledTokenizer(Tokenizer.from_file(str(file)), card)
