"""Which words of a passage serve a query, where a pattern found its fact."""

from __future__ import annotations

from typing import NamedTuple

from service.encoders.inputs import passage_text
from service.encoders.words import Word, words
from service.text import STOP_WORDS
from service.workshop.encoders.alignment import Mark
from service.workshop.facts.facts import COMPILED, Fact, clean_answer

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
    cut = words(text)
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


def _in(word: Word, span: Span) -> bool:
    """Words and marks of punctuation inside a span; a mark alone is no use to a query."""
    inside = span[0] <= word.start and word.end <= span[1]
    return inside and any(map(str.isalnum, word.text))


def _ties(word: Word) -> bool:
    return word.text.islower() and word.text not in STOP_WORDS
