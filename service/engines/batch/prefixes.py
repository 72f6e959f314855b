"""Automatic prefix caching: the states of a common beginning of prompts are computed once.

As in vLLM (Kwon et al. 2023, arXiv:2309.06180, section 4.4, "Shared prefix"), prompts are cut into
blocks of tokens. A block is identified by its own tokens and all tokens before it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

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
