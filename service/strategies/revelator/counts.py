"""The number that a question "How many …?" asks for (METHODS.md §1.3), where a passage has one
number of what is counted, and the reader took the number of something else.
"""

from __future__ import annotations

import re
from typing import Final

from service.text.words import (
    NUMBER_SCALES,
    NUMBER_WORDS,
    STOP_WORDS,
    letter_words,
    normal_words,
)

_HOW_MANY = re.compile(r"\bhow many (?:more |other |different )?([a-z]{3,})\b", re.IGNORECASE)
_FIRST: Final = "|".join(NUMBER_WORDS)
_NEXT: Final = "|".join([*NUMBER_WORDS, *NUMBER_SCALES, "dozen"])
_NUMBER: Final = rf"(?:\d+(?:[,.]\d+)*|(?:{_FIRST})\b)(?:[ -](?:{_NEXT})\b)*"


def corrected_count(question: str, text: str, answer: str) -> str:
    """Return the number that `text` gives of what `question` counts, in the place of an `answer`
    that begins with the number of something else ("four", of "four months", for "How many days?").

    Return `answer` where the question counts nothing, where `text` has no such number or several,
    and where the answer's number may be right: `text` does not always have it before another noun.
    """
    asked = _HOW_MANY.search(question)
    given = re.match(_NUMBER, answer, re.IGNORECASE)
    if not asked or not given or asked[1].casefold() in STOP_WORDS:
        return answer
    after = re.findall(rf"(?<!\w){re.escape(given[0])}[ -]([a-z]+)", text, re.IGNORECASE)
    words = {*letter_words(question.casefold()), *STOP_WORDS}
    if not after or not words.isdisjoint(word.casefold() for word in after):
        return answer
    of_it = rf"(?<![\w.,])({_NUMBER}) (?:[a-z]+ )?{_inflected(asked[1])}\b"
    found = re.findall(of_it, text, re.IGNORECASE)
    numbers = {normal_words(number) for number in found}
    return str(found[0]) if len(numbers) == 1 and normal_words(given[0]) not in numbers else answer


def _inflected(noun: str) -> str:
    """Return an expression of the singular and the plural of a noun."""
    noun = noun.casefold()
    if noun.endswith("ies"):
        return rf"{noun[:-3]}(?:y|ies)"
    return rf"{noun.removesuffix('s')}(?:e?s)?"
