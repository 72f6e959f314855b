"""What Auto-RAG does after each turn (methods §2.2), without I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from service.domain import StoppedBy
from service.loops.autorag.turns import read_turn

RETRIEVING_TOKENS: Final = 200
READING_TOKENS: Final = 150
KNOWLEDGE_TOKENS: Final = 200
DIRECT_TOKENS: Final = 150
MISSES_IN_A_ROW: Final = 2


@dataclass(frozen=True, slots=True)
class Search:
    """Retrieve for `query`; `repaired`: the turn named none, so it is the one before."""

    query: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class Imagine:
    """Let the model write a document for `query` from its own knowledge."""

    query: str


@dataclass(frozen=True, slots=True)
class Conclude:
    answer: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """NAIVE: answer without documents."""

    stopped_by: StoppedBy


Action = Search | Imagine | Conclude | GiveUp


@dataclass(slots=True)
class Plan:
    """The pseudocode of methods §2.2: `max_retrievals` is T, `max_parametric` T^PK."""

    question: str
    max_retrievals: int
    max_parametric: int
    retrieved: int = 0
    imagined: int = 0
    misses: int = 0
    query: str | None = None

    @property
    def document_number(self) -> int:
        """k: the number of the newest document, retrieved or imagined, found or empty."""
        return self.retrieved + self.imagined

    @property
    def max_tokens(self) -> int:
        """Lines 3, 10 and 15."""
        return RETRIEVING_TOKENS if self.retrieved < self.max_retrievals else READING_TOKENS

    def decide(self, text: str) -> Action:
        """What the turn `text` leads to."""
        if is_looping(text):
            return GiveUp("answer")
        if self.retrieved < self.max_retrievals:
            return self._while_retrieving(text)
        return self._after_retrieving(text)

    def _while_retrieving(self, text: str) -> Action:
        """Lines 3 to 9."""
        turn = read_turn(text)
        if not turn.query and turn.final:
            return Conclude(turn.final)
        self.misses = 0 if turn.query else self.misses + 1
        if self.misses == MISSES_IN_A_ROW:
            return GiveUp("answer")
        self.query = turn.query or self.query or self.question
        self.retrieved += 1
        return Search(self.query, repaired=not turn.query)

    def _after_retrieving(self, text: str) -> Action:
        """Lines 11 to 17."""
        turn = read_turn(text)
        if turn.refined and self.imagined < self.max_parametric:
            self.imagined += 1
            return Imagine(turn.refined)
        return Conclude(turn.final) if turn.final else GiveUp("max_steps")


_WORD = re.compile(r"\w+")
_UNBROKEN = re.compile(r"(\w{1,20}?)\1{7,}")
_LONGEST_LOOP: Final = 32


def is_looping(text: str) -> bool:
    """Whether a text is stuck: the same words, or the same letters, over and over (§2.2).

    One word six times, two or three words four times, four to 32 words three times; in scripts
    that write without spaces, the same letters eight times (digits may: 100000000).
    """
    words = [word.lower() for word in _WORD.findall(text)]
    longest = min(_LONGEST_LOOP, len(words) // 3)
    if any(_repeats(words, size) for size in range(1, longest + 1)):
        return True
    return any(not match.group().isdigit() for match in _UNBROKEN.finditer(text))


def _repeats(words: list[str], size: int) -> bool:
    """Whether some run of `size` words comes so often in a row that it is a loop."""
    times = 6 if size == 1 else 4 if size <= 3 else 3
    same = 0
    for index in range(size, len(words)):
        same = same + 1 if words[index] == words[index - size] else 0
        if same >= size * (times - 1):
            return True
    return False
