"""The words of English text, with one function for each purpose.

`content_words` are compared with other content words, `normal_words` with an answer in any form.
`word_spans` are labelled by the encoders of EfficientRAG, `spelt_words` are the words of a tagger,
and `letter_words` those of names.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from typing import Final, NamedTuple

_ENGLISH = tomllib.loads(
    resources.files("service.text").joinpath("english.toml").read_text("utf-8")
)


def word_list(name: str) -> frozenset[str]:
    """Return a list of `english.toml`."""
    return frozenset(_ENGLISH[name].split())


STOP_WORDS = word_list("stop_words")

# ---- content words

_CONTENT = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")


def content_words(text: str) -> set[str]:
    """Return the content words: case-folded (NFKC), without stop words and possessive endings."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    words = (word.removesuffix("'s") for word in _CONTENT.findall(folded))
    return {word for word in words if word not in STOP_WORDS}


# ---- words as they are spelt

SPELT: Final = r"[^\W_]+(?:[-'’.,][^\W_]+)*"
_SPELT = re.compile(SPELT)
_LETTERS = re.compile(r"[^\W\d_]+")


def spelt_words(text: str) -> list[str]:
    """Return the words with their hyphens, apostrophes, points and commas inside."""
    return _SPELT.findall(text)


def letter_words(text: str) -> list[str]:
    """Return the runs of letters."""
    return _LETTERS.findall(text)


# ---- words that are labelled

# The official code takes spaCy's tokens less the commas (METHODS.md §4.3). Serving does without
# spaCy, so a checkpoint names the rule that its training data was cut by.
WORD_RULE: Final = "revelator-1"  # to be changed with the expression below

_LETTER = r"[^\W_]"
_WORD_END = rf"(?!{_LETTER})"
_CLITIC = rf"n['’]t{_WORD_END}|['’](?:s|re|ve|ll|d|m){_WORD_END}"
_LABELLED = re.compile(
    rf"(?:[^\W\d_]\.){{2,}}"  # U.S.
    r"|(?-i:[A-Z])\.(?=\s|$)"  # an initial
    r"|\d+(?:[.,:]\d+)+"  # 1,000 and 3.5 and 10:30
    rf"|{_CLITIC}"
    rf"|{_LETTER}+?(?=n['’]t{_WORD_END})"  # the "do" of "don't"
    rf"|{_LETTER}+(?:(?!{_CLITIC})['’]{_LETTER}+)*"  # O'Brien
    r"|[^\w\s,]|_",
    re.IGNORECASE,
)


class WordSpan(NamedTuple):
    """A word and its position: `text` equals the source text[start:end], in code points."""

    text: str
    start: int
    end: int


def word_spans(text: str) -> list[WordSpan]:
    """Return words and single punctuation marks, without commas: spaCy's tokens in plain English.
    Cutting them again, joined by spaces, gives the same."""
    found = _LABELLED.finditer(text)
    return [WordSpan(match.group(), match.start(), match.end()) for match in found]


# ---- words in a normal form

MONTHS: Final = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_MONTH: Final = {name: name for name in MONTHS} | {name[:3]: name for name in MONTHS}
_MONTH["sept"] = "september"
_UNITS: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS: Final = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
NUMBER_WORDS: Final = {word: value for value, word in enumerate(_UNITS)} | {
    word: value for value, word in zip(range(20, 100, 10), _TENS, strict=True)
}
NUMBER_SCALES: Final = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9}
OTHER_FORMS: Final = frozenset(["percent", *NUMBER_WORDS, *_MONTH, *MONTHS])
_ARTICLES: Final = frozenset(["a", "an", "the"])
_DIGIT = re.compile(r"\d")
_ISO = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_THOUSANDS = re.compile(r"(?<=\d)[,\u00a0\u2009\u202f'’](?=\d{3}(?!\d))")
_ACRONYM = re.compile(r"\b(?:[^\W\d_]\.){2,}")
_POSSESSIVE = re.compile(r"['’]s\b")
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
# A script that is written without spaces has a word in every letter.
_NORMAL = re.compile(
    r"\d+\.\d+|%|[\u0e00-\u0eff\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff]"
    r"|[^\W_\u0e00-\u0eff\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff]+"
)


@lru_cache(maxsize=1024)
def normal_words(text: str) -> tuple[str, ...]:
    """Return the words by which answers are compared: without case, accents, articles and
    punctuation, with numbers and dates in one form.

    "5,199" gives the same as "5199", "two" as "2", and "March 4, 1851" as "4 March 1851", which
    begins with what "March 1851" gives.
    """
    text = unicodedata.normalize("NFKD", _THOUSANDS.sub("", text)).casefold()
    if not text.isascii():
        text = "".join(letter for letter in text if not unicodedata.combining(letter))
    text = _ISO.sub(_spelled, text)
    text = _ACRONYM.sub(lambda found: found[0].replace(".", ""), _POSSESSIVE.sub("", text))
    words = [word for word in _NORMAL.findall(text) if word not in _ARTICLES]
    if "%" in text or _DIGIT.search(text):
        words = [_normal_form(word) for word in words]
    words = words if NUMBER_WORDS.keys().isdisjoint(words) else _counted(words)
    return tuple(words if _MONTH.keys().isdisjoint(words) else _dated(words))


def _spelled(date: re.Match[str]) -> str:
    month = int(date[2])
    return f"{date[3]} {MONTHS[month - 1]} {date[1]}" if 1 <= month <= 12 else date[0]


def _normal_form(word: str) -> str:
    if word == "%":
        return "percent"
    if word[0].isdigit():
        ordinal = _ORDINAL.fullmatch(word)
        word = ordinal[1] if ordinal else word
        return (word.lstrip("0") or "0") if word.isdigit() and len(word) < 3 else word
    return word


def _counted(words: Iterable[str]) -> list[str]:
    """Replace number words by digits: "twenty two" is 22."""
    counted: list[str] = []
    tens = 0
    for word in words:
        value = NUMBER_WORDS.get(word)
        if value is not None and tens and 0 < value < 10:
            counted[-1] = str(tens + value)
        else:
            counted.append(word if value is None else str(value))
        tens = value if value is not None and value >= 20 else 0
    return counted


def _dated(words: list[str]) -> list[str]:
    """Write each date as year, month and day, as far as given, so that a part of it is a prefix."""
    dated: list[str] = []
    index = whole = 0  # words; those before `whole` are of a date already
    while index < len(words):
        at, month = index, _MONTH.get(words[index])
        after = words[index + 1 : index + 3]
        if month is None:
            dated.append(words[index])
        else:
            before, day = dated[whole:], None
            if len(before) > 1 and before[-1] == "of" and _is_day(before[-2]):
                before.pop()
                dated.pop()
            if before and _is_day(before[-1]):
                day = dated.pop()
            if day is None and after and _is_day(after[0]):
                day = after.pop(0)
                index += 1
            year = [after[0]] if after and _is_year(after[0]) else []
            index += len(year)
            known = bool(day or year)
            dated += [*year, month if known else words[at], *([day] if day else [])]
            whole = len(dated)
        index += 1
    return dated


def _is_day(word: str) -> bool:
    return word.isdecimal() and len(word) < 3 and 1 <= int(word) <= 31


def _is_year(word: str) -> bool:
    return word.isdecimal() and 3 <= len(word) <= 4
