"""Marks: which words of a passage serve a query (METHODS.md §4.5).

`align` finds words that a teacher copied (step 3); `mark_fact` marks a fact that a pattern found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from service.encoders.inputs import passage_text
from service.text import STOP_WORDS
from service.text.words import WordSpan, word_spans
from service.workshop.facts.patterns import COMPILED, Fact, clean_answer

REACH = 150  # distances looked at, from 0
LEAP = 75  # most that a forward match moves the cursor

Mark = Literal[0, 1]


def align(words: Sequence[str], extracted: Sequence[str]) -> list[Mark]:
    """1 for each of `words` that an extracted word was found at, else 0.

    From a cursor outwards, forward before backward at each distance, no word twice; what is not
    found is dropped. Compared without case, not by lemma: copied words keep their form.
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
    """Per word of the passage's text form: whether it is useful, and whether it is the answer."""

    useful: list[Mark]
    answer: list[Mark]


def mark_fact(fact: Fact) -> Marks | None:
    """The subject in the title, the answer, and the plain words that the pattern ties it with:
    ``Norma``, ``composed``, ``Vincenzo Bellini``. None where the answer is not found again."""
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
    """Of the answer, and of the whole match of the pattern, in the passage's text."""
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
    """Words and marks of punctuation inside a span; a mark alone is no use to a query."""
    inside = span[0] <= word.start and word.end <= span[1]
    return inside and any(map(str.isalnum, word.text))


def _ties(word: WordSpan) -> bool:
    return word.text.islower() and word.text not in STOP_WORDS
