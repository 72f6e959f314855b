"""What Auto-RAG does after each turn (METHODS.md §2.2), without I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from service.core.domain import StoppedBy
from service.prompts.examples import is_example
from service.strategies.autorag.turns import ANYWHERE, Form, Turn, read_turn
from service.strategies.revelator.parsing import ends_with, read_answer

RETRIEVING_TOKENS: Final = 200
READING_TOKENS: Final = 150
KNOWLEDGE_TOKENS: Final = 200
DIRECT_TOKENS: Final = 150
MISSES_IN_A_ROW: Final = 2


@dataclass(frozen=True, slots=True)
class Retrieve:
    """Retrieve for `query`. `repaired`: the turn named none, so this is an earlier query."""

    query: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class Imagine:
    """Let the model write a document for `query` from its own knowledge."""

    query: str


@dataclass(frozen=True, slots=True)
class Conclude:
    """End with this answer."""

    answer: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Give up the conversation, and answer directly (NAIVE)."""

    stopped_by: StoppedBy


@dataclass(frozen=True, slots=True)
class Remind:
    """Ask for the same turn again, and state its form."""


Action = Retrieve | Imagine | Conclude | GiveUp | Remind


@dataclass(slots=True)
class Policy:
    """Decides what follows each turn, by the pseudocode of METHODS.md §2.2. `max_retrievals` is T,
    `max_parametric` T^PK.

    A model that was not trained on the `form` is reminded of it once (`reminds`), also when it
    copies the `examples` that it was shown (`echoed`: the newest turn did). A query of such a model
    that was cut is not used. A trained model continues with a cut query, as published
    (`shortened`: the newest query is one).
    """

    question: str
    max_retrievals: int
    max_parametric: int
    form: Form = ANYWHERE
    reminds: bool = False
    examples: str = ""
    echoed: bool = False
    shortened: bool = False
    retrieved: int = 0
    imagined: int = 0
    misses: int = 0
    query: str | None = None

    @property
    def document_number(self) -> int:
        """k, the number of the newest document, retrieved or written by the model, empty or not."""
        return self.retrieved + self.imagined

    @property
    def max_tokens(self) -> int:
        """Lines 3, 10 and 15."""
        return RETRIEVING_TOKENS if self.retrieved < self.max_retrievals else READING_TOKENS

    def decide(self, text: str, shown: str = "", *, cut: bool = False) -> Action:
        """Return what follows the turn `text`. `shown`: the question and the documents so far;
        `cut`: a limit ended the turn."""
        if is_looping(text):
            return GiveUp("answer")
        turn = self._own(read_turn(text, self.form), shown)
        self.shortened = cut and turn.query is not None and _is_cut(turn.query, text)
        if self.shortened and self.form.lines:
            self.shortened = False
            turn = turn._replace(query=None, refined=None)
        if self.reminds and not turn.query and not turn.final:
            self.reminds = False
            return Remind()
        if self.retrieved < self.max_retrievals:
            return self._while_retrieving(turn)
        return self._after_retrieving(turn)

    def _own(self, turn: Turn, shown: str) -> Turn:
        """The turn without what the model copied out of the demonstrations; `echoed` tells."""
        parts = (turn.query, turn.refined, turn.final)
        own = [part and self._sound(part, shown) for part in parts]
        self.echoed = list(parts) != own
        return turn._replace(query=own[0], refined=own[1], final=own[2])

    def _sound(self, part: str, shown: str) -> str | None:
        if not is_example(part, self.examples, shown) or read_answer(part).declined:
            return part  # an example shows how to decline
        return None

    def _while_retrieving(self, turn: Turn) -> Action:
        """Lines 3 to 9."""
        if not turn.query and turn.final:
            return Conclude(turn.final)
        self.misses = 0 if turn.query else self.misses + 1
        if self.misses == MISSES_IN_A_ROW:
            return GiveUp("answer")
        self.query = turn.query or self.query or self.question
        self.retrieved += 1
        return Retrieve(self.query, repaired=not turn.query)

    def _after_retrieving(self, turn: Turn) -> Action:
        """Lines 11 to 17."""
        if turn.refined and self.imagined < self.max_parametric:
            self.imagined += 1
            return Imagine(turn.refined)
        return Conclude(turn.final) if turn.final else GiveUp("max_steps")


def _is_cut(query: str, text: str) -> bool:
    """Whether the query of a text that was cut is what was cut of it."""
    return ends_with(text, query) and not query.endswith("?")


_WORD = re.compile(r"\w+")
_UNBROKEN = re.compile(r"(\w{1,20}?)\1{7,}")
_LONGEST_LOOP: Final = 32


def is_looping(text: str) -> bool:
    """Whether a text repeats itself (METHODS.md §2.2): one word six times in a row, two or three
    words four times, four to 32 words three times, or in scripts without spaces the same letters
    eight times. Digits may repeat (100000000)."""
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
