"""What an EfficientRAG loop does in this deployment: a profile, and what differs from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from service.core.settings.loops import EfficientragSettings


@dataclass(frozen=True, slots=True)
class Options:
    """The resolved set (METHODS.md §4.2, §4.4, §6 #25).

    `finishes`: FINISH is a tag of its own, else it is CONTINUE. `deduplicate`: a passage found
    twice is read once. `stops_early`: a hop without a new passage is the last one, and so is one
    whose next query is its own. `reader_passages`: at most so many are read, None: what the
    reader's model is known to read well, or all. `closed_book`: with nothing kept the reader
    answers all the same. `official`: the reader is asked as the paper's is.
    """

    finishes: bool = False
    filter_base: Literal["current", "original"] = "current"
    deduplicate: bool = False
    stops_early: bool = False
    reader_passages: int | None = None
    closed_book: bool = True
    official: bool = True


OFFICIAL: Final = Options()
SERVICE: Final = Options(
    finishes=True, deduplicate=True, stops_early=True, closed_book=False, official=False
)
PROFILES: Final = {"official": OFFICIAL, "service": SERVICE}


def resolve(settings: EfficientragSettings) -> Options:
    """The profile, then each setting that is given."""
    base = PROFILES[settings.profile]
    finishes = base.finishes if settings.labels is None else settings.labels == 3
    deduplicate = base.deduplicate if settings.deduplicate is None else settings.deduplicate
    return replace(
        base,
        finishes=finishes,
        deduplicate=deduplicate,
        filter_base=settings.filter_base,
        reader_passages=settings.reader_passages,
    )
