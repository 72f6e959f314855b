"""The decisions of an EfficientRAG loop after each hop (METHODS.md §4.2, lines 6 to 9; METHODS.md
§6 #25). Pure.

The options are a profile, and the settings that override it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from service.core.domain import Flag, StoppedBy
from service.encoders.base import PassageLabel, Tag
from service.text.words import word_spans


@dataclass(frozen=True, slots=True)
class EfficientRagOptions:
    """The differences of the profiles (METHODS.md §4.2, §4.4, §6 #25).

    `finishes`: FINISH is a separate tag, else it is CONTINUE. `deduplicate`: a passage found twice
    is read once. `stops_early`: a hop without a new passage is the last one, and so is one whose
    next query equals its own. `closed_book`: the reader answers even if no passage was kept.
    `official`: the reader is prompted as in the paper.
    """

    finishes: bool = False
    deduplicate: bool = False
    stops_early: bool = False
    closed_book: bool = True
    official: bool = True


OFFICIAL: Final = EfficientRagOptions()
SERVICE: Final = EfficientRagOptions(
    finishes=True, deduplicate=True, stops_early=True, closed_book=False, official=False
)
PROFILES: Final = {"official": OFFICIAL, "service": SERVICE}


@dataclass(frozen=True, slots=True)
class NextQuery:
    """Make the next query from these marked words."""

    infos: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """End the search and let the reader answer."""

    stopped_by: StoppedBy = "answer"
    flag: Flag | None = None


def as_tagged(labels: Sequence[PassageLabel], options: EfficientRagOptions) -> list[PassageLabel]:
    """Return the labels; with two tags, FINISH counts as CONTINUE."""
    if options.finishes:
        return list(labels)
    return [
        replace(label, tag=Tag.CONTINUE) if label.tag is Tag.FINISH else label for label in labels
    ]


def after_labels(
    labels: Sequence[PassageLabel], added: int, hops_left: int, options: EfficientRagOptions
) -> NextQuery | Read:
    """Return what follows the labels of a hop (lines 6 to 8). `added`: the number of passages that
    the hop added to the pool."""
    infos = [label.info for label in labels if label.tag is Tag.CONTINUE]
    if not infos:
        return Read()
    if options.stops_early and not added:
        return Read(flag="no_new_evidence")
    if hops_left < 1:
        return Read(stopped_by="max_steps")
    return NextQuery(tuple(info for info in infos if info.strip()))


def after_filter(query: str, filtered: str, options: EfficientRagOptions) -> str | Read:
    """Return the next query (line 9), unless it is empty or repeats the current one."""
    same = _compared(filtered) == _compared(query)
    if not filtered or (same and options.stops_early):
        return Read(flag="no_progress")
    return filtered


def _compared(query: str) -> list[str]:
    return [word.text.casefold() for word in word_spans(query)]
