"""Automatic prefix caching: what prompts share at their beginning is computed once.

As in vLLM (Kwon et al. 2023, arXiv:2309.06180, section 4.4, "Shared prefix"), prompts are cut into
blocks of tokens; a block is known by its own tokens and all before them.
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

    The last token is in none of them: it has to be computed, for the first token that is written.
    """
    names: list[bytes] = []
    name = b""
    for end in range(BLOCK, len(prompt), BLOCK):
        tokens = array("q", prompt[end - BLOCK : end]).tobytes()
        name = blake2b(name + tokens, digest_size=16).digest()
        names.append(name)
    return names


class PrefixCache(Generic[States]):
    """Blocks of the prompts read last, at most `most_bytes` of them.

    The least recently used go first, and the later ones of a prompt before those they follow.
    Each block's states must be memory of their own, `size` bytes of it.
    """

    def __init__(self, most_bytes: int, size: Callable[[States], int]) -> None:
        self.nbytes = 0
        self._most_bytes = most_bytes
        self._size = size
        self._blocks: OrderedDict[bytes, States] = OrderedDict()

    def count(self, names: Sequence[bytes]) -> int:
        """Return how many of a prompt's first blocks are known."""
        unknown = (number for number, name in enumerate(names) if name not in self._blocks)
        return next(unknown, len(names))

    def take(self, names: Sequence[bytes]) -> list[States]:
        """Return the states of blocks that are known, which become the last to go."""
        for name in reversed(names):
            self._blocks.move_to_end(name)
        return [self._blocks[name] for name in names]

    def add(self, names: Sequence[bytes], states: Callable[[int], States]) -> None:
        """Keep the blocks of a prompt; `states(n)` is called for those not known."""
        for number in reversed(range(len(names))):
            name = names[number]
            if name in self._blocks:
                self._blocks.move_to_end(name)
                continue
            self._blocks[name] = states(number)
            self.nbytes += self._size(self._blocks[name])
            while self.nbytes > self._most_bytes:
                self.nbytes -= self._size(self._blocks.popitem(last=False)[1])

    def clear(self) -> None:
        """Free the memory."""
        self._blocks.clear()
        self.nbytes = 0
