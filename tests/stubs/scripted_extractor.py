"""An encoder that finds scripted answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from service.core.domain import Passage
from service.core.errors import EngineFailure
from service.encoders.base import Reading

Found = tuple[str, float]  # an answer and its probability


class ScriptedExtractor:
    """Finds answers by the title of a passage; those of a question by a word of it."""

    threshold = 0.5

    def __init__(self, found: Mapping[str, Found], delay: float = 0.0, fails: bool = False) -> None:
        self.found, self.delay, self.fails = found, delay, fails
        self.batches: list[list[str]] = []

    async def read(self, question: str, passages: Sequence[Passage]) -> Reading:
        self.batches.append([each.passage_id for each in passages])
        await anyio.sleep(self.delay)
        if self.fails:
            raise EngineFailure("the reader failed")
        answers = [self.found.get(each.title, ("", 0.1)) for each in passages]
        best = max(range(len(answers)), key=lambda n: answers[n][1])
        answer, score = answers[best]
        start = passages[best].text.find(answer)
        plain = answer in ("yes", "no")
        kind: Any = "none" if score < self.threshold else answer if plain else "span"
        spans = () if plain else ((start, start + len(answer)),)
        return Reading(kind, answer, best, spans, score, tuple(s for _, s in answers), 100)
