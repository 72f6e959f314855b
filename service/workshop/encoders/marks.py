"""Mark the words of a passage that a teacher copied (METHODS.md §4.5, step 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

REACH = 150  # number of distances tried, starting at 0
LEAP = 75  # most words by which a forward match moves the cursor

Mark = Literal[0, 1]


def align(words: Sequence[str], extracted: Sequence[str]) -> list[Mark]:
    """Return 1 for each of `words` that matches an extracted word, else 0.

    The search proceeds outwards from a cursor, forwards before backwards at each distance, and
    matches no word twice. Extracted words that are not found are dropped. The comparison ignores
    case but not inflection, because copied words keep their form.
    """
    folded = [word.casefold() for word in words]
    labels: list[Mark] = [0] * len(words)
    cursor = 0
    for word in extracted:
        place = _nearest(folded, labels, word.casefold(), cursor)
        if place is not None:
            labels[place] = 1
            cursor = min(place, cursor + LEAP)
    return labels


def _nearest(words: Sequence[str], labels: Sequence[Mark], word: str, cursor: int) -> int | None:
    for distance in range(REACH):
        for place in (cursor + distance, cursor - distance):
            if 0 <= place < len(words) and not labels[place] and words[place] == word:
                return place
    return None
