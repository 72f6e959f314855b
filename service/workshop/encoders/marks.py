"""Mark the words of a passage that are useful for a query (METHODS.md §4.5).

`align` finds words that a teacher copied (step 3); `mark_fact` marks a fact found by a pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from service.encoders.inputs import passage_text
from service.text import STOP_WORDS
from service.text.words import WordSpan, word_spans
from service.workshop.facts.patterns import COMPILED, Fact, clean_answer

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


Span = tuple[int, int]


class Marks(NamedTuple):
    """Two labels for each word of the passage's text form: whether it is useful, and whether it is
    part of the answer."""

    useful: list[Mark]
    answer: list[Mark]


def mark_fact(fact: Fact) -> Marks | None:
    """Mark the subject in the title, the answer, and the content words by which the pattern
    connects them.

    An example is ``Norma``, ``composed``, ``Vincenzo Bellini``. Returns None if the answer is not
    found in the passage.
    """
    found = _find(fact)
    if found is None:
        return None
    text = passage_text(fact.passage.title, fact.passage.text)
    body = len(text) - len(fact.passage.text)
    answer, around = (_moved(span, body) for span in found)
    subject = text.find(fact.subject, 0, body)
    title = (subject, subject + len(fact.subject)) if subject >= 0 else (0, 0)
    cut = word_spans(text)
    useful: list[Mark] = [
        1 if _in(word, answer) or _in(word, title) or (_in(word, around) and _ties(word)) else 0
        for word in cut
    ]
    return Marks(useful, [1 if _in(word, answer) else 0 for word in cut])


def _find(fact: Fact) -> tuple[Span, Span] | None:
    """Return the spans of the answer and of the pattern's whole match in the passage's text."""
    text = fact.passage.text
    for pattern in COMPILED[fact.kind]:
        match = pattern.search(text)
        if match and clean_answer(match.group(1)) == fact.answer:
            start = match.start(1) + match.group(1).index(fact.answer)
            return (start, start + len(fact.answer)), match.span()
    start = text.find(fact.answer)
    if start < 0:
        return None
    span = (start, start + len(fact.answer))
    return span, span


def _moved(span: Span, by: int) -> Span:
    return span[0] + by, span[1] + by


def _in(word: WordSpan, span: Span) -> bool:
    """Whether a word is inside a span. Punctuation is excluded, since it is useless for a query."""
    inside = span[0] <= word.start and word.end <= span[1]
    return inside and any(map(str.isalnum, word.text))


def _ties(word: WordSpan) -> bool:
    return word.text.islower() and word.text not in STOP_WORDS
