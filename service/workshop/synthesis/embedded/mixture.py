"""All roles in one stream, each with its share of the text that is read and written."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from service.core.errors import InvalidRequest
from service.workshop.facts.names import Names
from service.workshop.facts.questions import Maker
from service.workshop.facts.rows import Row
from service.workshop.synthesis.embedded.dialogues import Dialogues
from service.workshop.synthesis.embedded.drafts import Drafts
from service.workshop.synthesis.embedded.prompts import Prompts
from service.workshop.synthesis.embedded.reading import Reading
from service.workshop.synthesis.embedded.routing import Routing
from service.workshop.synthesis.embedded.sets import Sets
from service.workshop.synthesis.embedded.steps import Steps

SHARES: Final[Mapping[str, float]] = {
    "answer": 0.57, "relevance": 0.05, "route": 0.05, "refine": 0.045, "final": 0.045,
    "ending": 0.025, "decompose": 0.04, "merge": 0.03, "closed": 0.005, "autorag": 0.05,
    "dragin": 0.09,
}  # fmt: skip
TEMPLATES: Final = "compact"
TRIES: Final = 100  # for a row that was not drawn before


class Mixture:
    """An endless, repeatable stream of rows; no prompt comes twice.

    `folder` holds the sets, `shares` the part of each task in characters.
    """

    def __init__(
        self, folder: Path, seed: int = 0, templates: str = TEMPLATES,
        shares: Mapping[str, float] = SHARES,
    ) -> None:  # fmt: skip
        rng, sets = random.Random(seed), Sets(folder)
        maker = Maker(sets.facts, Names(sets.facts), rng)
        prompts = Prompts(templates, seed, sets.passages)
        reading = Reading(sets, maker, prompts, rng)
        routing = Routing(sets, maker, prompts, rng)
        steps = Steps(sets, maker, routing, prompts, rng)
        dialogues = Dialogues(maker, reading, prompts, rng)
        drafts = Drafts(maker, reading, prompts, rng)
        makers = (reading, routing, steps, dialogues, drafts)
        self.shares, self.prompts = shares, prompts
        self.draws: dict[str, Callable[[], Row | list[Row]]] = {
            task: next(getattr(m, task) for m in makers if hasattr(m, task)) for task in shares
        }
        self.written: Counter[str] = Counter()
        self.seen: set[str] = set()

    def rows(self) -> Iterator[Row]:
        """The task that is furthest behind its share comes next.

        What a row's prompt shares with the one before, on the same sheet, counts once.
        """
        before = ""
        while True:
            total = sum(self.written.values())
            task = max(self.shares, key=lambda name: self.shares[name] * total - self.written[name])
            for row in self._new(task):
                prompt = row.messages[0].content
                size = sum(len(message.content) for message in row.messages)
                self.written[task] += size - alike(prompt, before)
                before = prompt
                yield row

    def _new(self, task: str) -> list[Row]:
        """Rows that were not drawn before, or after many tries none."""
        for _ in range(TRIES):
            drawn = self.draws[task]()
            rows = [drawn] if isinstance(drawn, Row) else drawn
            new = [row for row in rows if row.side == "train" and self._is_new(row)]
            if new:
                return new
        raise InvalidRequest(f"the sets give no more rows of {task} than have been written")

    def _is_new(self, row: Row) -> bool:
        prompt = row.messages[0].content
        known = prompt in self.seen
        self.seen.add(prompt)
        return not known


def alike(text: str, other: str) -> int:
    """How many first characters are the same."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(text), len(other)))
