"""The words of a text, for labels on words: spaCy's cuts in plain English, by a rule of our own.

The official code takes spaCy's tokens less the commas (METHODS.md §4.3). Serving does without
spaCy, so a checkpoint names the rule that its training data was cut by.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

WORD_RULE: Final = "revelator-1"  # to be changed with the expression below

_LETTER = r"[^\W_]"
_END = rf"(?!{_LETTER})"
_CLITIC = rf"n['’]t{_END}|['’](?:s|re|ve|ll|d|m){_END}"
_WORD = re.compile(
    rf"(?:[^\W\d_]\.){{2,}}"  # U.S.
    r"|(?-i:[A-Z])\.(?=\s|$)"  # an initial
    r"|\d+(?:[.,:]\d+)+"  # 1,000 and 3.5 and 10:30
    rf"|{_CLITIC}"
    rf"|{_LETTER}+?(?=n['’]t{_END})"  # the "do" of "don't"
    rf"|{_LETTER}+(?:(?!{_CLITIC})['’]{_LETTER}+)*"  # O'Brien
    r"|[^\w\s,]|_",
    re.IGNORECASE,
)


class Word(NamedTuple):
    """`text` is the source's [start:end], in code points."""

    text: str
    start: int
    end: int


def words(text: str) -> list[Word]:
    """Words and single punctuation marks, without commas. Cutting them again, joined by spaces,
    gives the same."""
    return [Word(match.group(), match.start(), match.end()) for match in _WORD.finditer(text)]
