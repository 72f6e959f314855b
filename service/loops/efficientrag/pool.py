"""The candidate pool: what the reader is shown (methods §4.2, lines 5 and 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from service.domain import Passage
from service.labelling.base import PassageLabel, Tag

FRAME: Final = 16  # bytes around a passage in a prompt


class Candidate(NamedTuple):
    """A kept passage, the step that found it, and the probability of its tag."""

    passage: Passage
    step: str
    probability: float


class Choice(NamedTuple):
    """Whether a passage joins the pool, and why."""

    kept: bool
    reason: str


@dataclass(slots=True)
class Pool:
    """Hop order, then rank. With `deduplicate` a passage has its first place only."""

    deduplicate: bool
    candidates: list[Candidate] = field(default_factory=list)

    def add(
        self, step: str, passages: Sequence[Passage], labels: Sequence[PassageLabel]
    ) -> list[Choice]:
        """Take in the labelled passages of one hop; a choice for each."""
        return [
            self._add(Candidate(passage, step, label.probability), label.tag)
            for passage, label in zip(passages, labels, strict=True)
        ]

    def _add(self, candidate: Candidate, tag: Tag) -> Choice:
        tagged = f"{tag.name.lower()} ({candidate.probability:.2f})"
        if tag is Tag.TERMINATE:
            return Choice(False, tagged)
        if self.deduplicate and self._has(candidate.passage):
            return Choice(False, f"{tagged}, in the pool already")
        self.candidates.append(candidate)
        return Choice(True, tagged)

    def _has(self, passage: Passage) -> bool:
        return any(c.passage.passage_id == passage.passage_id for c in self.candidates)

    def to_read(self, most: int | None, room: int | None) -> list[Candidate]:
        """All of it in its order; where only `most`, or `room` bytes, may be read, the most
        probable first. None: no limit."""
        chosen: list[Candidate] = []
        for candidate in sorted(self.candidates, key=lambda each: -each.probability):
            size = len(f"{candidate.passage.title}{candidate.passage.text}".encode()) + FRAME
            if (most is not None and len(chosen) >= most) or (room is not None and size > room):
                continue
            room = None if room is None else room - size
            chosen.append(candidate)
        return chosen if len(chosen) < len(self.candidates) else list(self.candidates)
