"""What an EfficientRAG loop does under each profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Options:
    """Where the profiles differ (METHODS.md §4.2, §4.4, §6 #25).

    `finishes`: FINISH is a tag of its own, else it is CONTINUE. `deduplicate`: a passage found
    twice is read once. `stops_early`: a hop without a new passage is the last one, and so is one
    whose next query is its own. `closed_book`: with nothing kept the reader answers all the same.
    `official`: the reader is asked as the paper's is.
    """

    finishes: bool = False
    deduplicate: bool = False
    stops_early: bool = False
    closed_book: bool = True
    official: bool = True


OFFICIAL: Final = Options()
SERVICE: Final = Options(
    finishes=True, deduplicate=True, stops_early=True, closed_book=False, official=False
)
PROFILES: Final = {"official": OFFICIAL, "service": SERVICE}
