"""The candidate pool, from which the reader reads (METHODS.md §4.2, lines 5 and 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from service.core.domain import Passage
from service.encoders.base import PassageLabel, Tag

FRAME: Final = 16  # bytes around a passage in a prompt


class Candidate(NamedTuple):
    """A kept passage, the step that found it, and its tag. `probability` is 0 without a label."""

    passage: Passage
    step: str
    tag: Tag
    probability: float
    reason: str

    @property
    def preference(self) -> tuple[bool, float]:
        """Passages tagged FINISH come first, then those with a higher probability, rounded to one
        decimal."""
        return self.tag is Tag.FINISH, round(self.probability, 1)


class PoolChoice(NamedTuple):
    """Whether a passage joins the pool, and why."""

    kept: bool
    reason: str


@dataclass(slots=True)
class CandidatePool:
    """Candidates in the order of hops, then of ranks. With `deduplicate` a passage is kept once, in
    its first place."""

    deduplicate: bool
    candidates: list[Candidate] = field(default_factory=list)

    def add(
        self, step: str, passages: Sequence[Passage], labels: Sequence[PassageLabel]
    ) -> list[PoolChoice]:
        """Add the labelled passages of one hop. Return a choice for each."""
        return [
            self._add(Candidate(passage, step, label.tag, label.probability, _reason(label)))
            for passage, label in zip(passages, labels, strict=True)
        ]

    def _add(self, candidate: Candidate) -> PoolChoice:
        if candidate.tag is Tag.TERMINATE:
            return PoolChoice(False, candidate.reason)
        if self.deduplicate and self._has(candidate.passage):
            return PoolChoice(False, f"{candidate.reason}, already in the pool")
        self.candidates.append(candidate)
        return PoolChoice(True, candidate.reason)

    def _has(self, passage: Passage) -> bool:
        return any(c.passage.passage_id == passage.passage_id for c in self.candidates)

    def to_read(self, most: int | None, room: int | None) -> list[Candidate]:
        """Return all candidates in order, or the preferred ones first if not all fit in `most`
        passages and `room` bytes. None means no limit."""
        chosen: list[Candidate] = []
        for candidate in sorted(self.candidates, key=lambda each: each.preference, reverse=True):
            size = len(f"{candidate.passage.title}{candidate.passage.text}".encode()) + FRAME
            if (most is not None and len(chosen) >= most) or (room is not None and size > room):
                continue
            room = None if room is None else room - size
            chosen.append(candidate)
        return chosen if len(chosen) < len(self.candidates) else list(self.candidates)


def _reason(label: PassageLabel) -> str:
    return f"{label.tag.name.lower()} ({label.probability:.2f})"
