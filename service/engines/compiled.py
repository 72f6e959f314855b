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

from service.encoders.in_process import open_onnx
from service.engines.embedded import EmbeddedCard, ModelShape

Array = NDArray[Any]
ALIGNED: Final = 1024  # positions, a multiple of which is a whole number of memory pages


class OnnxNetwork:
    """A graph whose cache is written in place. Raises the library's errors for a file that is not
    such a graph."""

    no_signals: str | None = None

    def __init__(self, model: Path, shape: ModelShape, *, threads: int) -> None:
        self.context, self.vocabulary = shape.context, shape.vocabulary
        self.scale = shape.head_size**-0.5
        self._length = 0
        self._heads, self._size = shape.heads, shape.head_size
        self._session = open_onnx(model, threads, spinning=True)
        pairs = [(layer, kind) for layer in range(shape.layers) for kind in ("key", "value")]
        room = -(-shape.context // ALIGNED) * ALIGNED
        size = (1, shape.kv_heads, room, shape.head_size)
        self._cache = [(f"{layer}.{kind}", _memory(size)) for layer, kind in pairs]

    def run(self, ids: Sequence[int]) -> tuple[Array, Array]:
        start, self._length = self._length, self._length + len(ids)
        binding = self._session.io_binding()
        binding.bind_cpu_input("ids", np.array([ids], np.int64))
        binding.bind_cpu_input("positions", np.arange(start, self._length)[None])
        binding.bind_cpu_input("ends", np.array([self._length - 1], np.int32))
        binding.bind_cpu_input("total", np.array(self._length, np.int32))
        binding.bind_cpu_input("wanted", np.array([len(ids) - 1]))
        binding.bind_output("logits", "cpu")
        binding.bind_output("queries", "cpu")
        for name, states in self._cache:
            place = ("cpu", 0, np.float32, states.shape, states.ctypes.data)
            binding.bind_input(f"past.{name}", *place)
            binding.bind_output(f"present.{name}", *place)
        self._session.run_with_iobinding(binding)
        logits, queries = (value.numpy() for value in binding.get_outputs()[:2])
        shaped = queries.reshape(len(ids), self._heads, self._size)
        return logits[0], shaped.transpose(1, 0, 2)

    def keys(self) -> Array:
        keys: Array = self._cache[-2][-1][0, :, : self._length]
        return keys

    def keep(self, length: int) -> int:
        self._length = length
        return length


def _memory(shape: tuple[int, ...]) -> Array:
    """Return an array in memory that is used page by page, where it is written.

    Numpy asks the kernel for pages of 2 MB, of which one position of a head would use a whole one.
    """
    size, flags = 4 * prod(shape), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size, flags=flags)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux, of which some kernels have no huge pages
        with suppress(OSError):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float32).reshape(shape)


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
