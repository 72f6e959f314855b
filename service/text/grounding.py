"""Whether texts support an answer: the same words, numbers and dates in any form (pure).

Answers are compared as words without case, accents, articles and punctuation. "5,199" equals
"5199", "two" equals "2", and "March 4, 1851" equals "4 March 1851", which also supports "March
1851" and "1851".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from service.text import STOP_WORDS

SHORT: Final = 4  # words: a longer answer may be a sentence, which no passage holds word by word
_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_MONTH: Final = {name: name for name in _MONTHS} | {name[:3]: name for name in _MONTHS}
_MONTH["sept"] = "september"
_UNITS: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS: Final = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_NUMBER: Final = {word: value for value, word in enumerate(_UNITS)} | {
    word: value for value, word in zip(range(20, 100, 10), _TENS, strict=True)
}
_OTHER_FORMS: Final = frozenset(["percent", *_NUMBER, *_MONTH, *_MONTHS])
_ARTICLES: Final = frozenset(["a", "an", "the"])
_CONNECTIVES: Final = STOP_WORDS - {"no", "nor", "not"}

_BEFORE = ' \n("'  # of a word, these end no other, and are no part of a number
_AFTER = ' \n;:?!)"'
_DIGIT = re.compile(r"\d")
_ISO = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_THOUSANDS = re.compile(r"(?<=\d)[,\u00a0\u2009\u202f'’](?=\d{3}(?!\d))")
_ACRONYM = re.compile(r"\b(?:[^\W\d_]\.){2,}")
_POSSESSIVE = re.compile(r"['’]s\b")
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
# A script that is written without spaces has a word in every letter.
_TOKEN = re.compile(
    r"\d+\.\d+|%|[\u0e00-\u0eff\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff]"
    r"|[^\W_\u0e00-\u0eff\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff]+"
)
_CAPITAL = re.compile(r"(?<!^)\b[A-Z][\w'’.-]*")
_YES_NO = re.compile(r"\W*(?:yes|no)\b(?:\W*\Z|\s*[,;:.!–—-](?!\s*\d))", re.IGNORECASE)
_JOINT = re.compile(r"[,;]\s+|\s+(?:&&?|and|or|/)\s+|\n+|\s*[()]\s*", re.IGNORECASE)


def bears(text: str, answer: str) -> bool:
    """Whether `text` contains `answer` as a whole. An answer without words is contained nowhere."""
    return bool(bearing([text], answer))


def bearing(texts: Sequence[str], answer: str) -> list[int]:
    """Return the indices of the `texts` that contain `answer`."""
    words = _needle(answer)
    if not words:
        return []
    wanted = _Wanted(words)
    return [index for index, text in enumerate(texts) if wanted.stands_in(text, text.lower())]


def support(answer: str, question: str, texts: Sequence[str]) -> list[int]:
    """Return the indices of the `texts` that support the `answer` to `question`; empty if
    unsupported.

    A text supports an answer that it contains as a whole. A list is supported if each of its items
    is. A sentence is supported if all its new names and numbers are, and more than half of its new
    words (new: not in the question). Yes and no are supported by texts that mention every name in
    the question or, if it has no names, more than half of its words.
    """
    whole = bearing(texts, answer)
    if whole and (len(_tokens(answer)) > 1 or not is_yes_no(answer)):
        return whole
    if is_yes_no(answer):
        return _tells_of(_content(question), _names(question), texts)
    items = [item for item in _JOINT.split(answer) if _needle(item)]
    if len(items) > 1:
        borne = [bearing(texts, item) for item in items]
        if all(borne):
            return sorted(set().union(*borne))
    if len(_needle(answer)) <= SHORT:
        return []
    asked = set(_tokens(question))
    new = {word for word in _content(answer) if word not in asked} or _content(answer)
    return _tells_of(new, _names(answer) & new, texts)


def is_yes_no(answer: str) -> bool:
    """Whether the answer says yes or no, perhaps with a reason ("No. 5" and "No Country for Old
    Men" do not)."""
    return _YES_NO.match(answer) is not None


def _tells_of(words: set[str], names: set[str], texts: Sequence[str]) -> list[int]:
    """The texts that hold some of the decisive words, if all texts together hold enough."""
    wanted = {word: _Wanted([word]) for word in words | names}
    held: list[set[str]] = []
    for text in texts:
        folded = text.lower()
        held.append({word for word, each in wanted.items() if each.stands_in(text, folded)})
    together = set().union(*held)
    if not words or not names <= together or 2 * len(together & words) <= len(words):
        return []
    return [index for index, found in enumerate(held) if found & (names or words)]


def _needle(answer: str) -> list[str]:
    """The words of an answer without the connectives around it ("in 1899" is 1899)."""
    words = list(_tokens(answer))
    begin, end = 0, len(words)
    while begin < end and words[begin] in _CONNECTIVES:
        begin += 1
    while end > begin and words[end - 1] in _CONNECTIVES:
        end -= 1
    return words[begin:end] or words


def _content(text: str) -> set[str]:
    return {word for word in _tokens(text) if word not in STOP_WORDS}


def _names(text: str) -> set[str]:
    """Words written with a capital, but for the first one of all, and numbers."""
    capitals = _content(" ".join(_CAPITAL.findall(text.strip())))
    return capitals | {word for word in _tokens(text) if word[0].isdigit()}


class _Wanted:
    """Words to be found in texts as they stand there, one after the other, in whatever form.

    A text is cut into words only where a look at its letters does not tell: most texts hold an
    answer as it is written, or miss a word of it.
    """

    __slots__ = ("sure", "whole", "written")

    def __init__(self, words: Sequence[str]) -> None:
        self.whole = f" {' '.join(words)} "
        # Those that a text has letter by letter, whatever the form it has them in.
        self.sure = [word for word in words if _is_long_number(word) or _is_plain(word)]
        alone = len(words) == 1 or not any(map(str.isdigit, words))  # dates have many orders
        certain = alone and len(self.sure) == len(words) and words[-1] not in _CONNECTIVES
        self.written = " ".join(words) if certain and all(len(w) > 1 for w in words) else ""

    def stands_in(self, text: str, folded: str) -> bool:
        """`folded`: `text` in lower case."""
        if self.written and _is_apart(self.written, folded):
            return True
        return self._may_stand_in(text, folded) and self.whole in _plain(text)

    def _may_stand_in(self, text: str, folded: str) -> bool:
        if _among(self.sure, folded):
            return True
        if text.isascii():
            return False
        text = text.replace("\u00a0", "").replace("\u2009", "").replace("\u202f", "")
        folded = unicodedata.normalize("NFKD", text).casefold().replace("’", "'")
        return _among(self.sure, folded.encode("ascii", "ignore").decode())


def _is_apart(written: str, folded: str) -> bool:
    """Whether `written` is somewhere in a text, in lower case, where nothing around it could make
    it a part of another word, number or acronym."""
    at = folded.find(written)
    while at >= 0:
        end = at + len(written)
        before, after, next_one = (
            folded[at - 1 : at],
            folded[end : end + 1],
            folded[end + 1 : end + 2],
        )
        if before in _BEFORE and (after in _AFTER or (after in ".," and not next_one.isalnum())):
            return True
        at = folded.find(written, at + 1)
    return False


def _among(words: Sequence[str], folded: str) -> bool:
    """Whether each word may be in the text, whose acronyms lose their dots, and whose numbers what
    parts their thousands."""
    missed = [word for word in words if word not in folded]
    if not missed or "'s." in folded:  # 's may be in an acronym
        return True
    letters = folded.replace(".", "").replace(",", "").replace("'", "")
    return all(word in letters for word in missed)


def _is_plain(word: str) -> bool:
    """Whether it is no other form of a word, as month and number names are."""
    return word.isascii() and word.isalpha() and word not in _OTHER_FORMS


def _is_long_number(word: str) -> bool:
    """Of digits that are in the text too; two of them are spelled, or have a zero before."""
    return len(word) > 2 and word.isascii() and word.isdigit()


@lru_cache(maxsize=512)
def _plain(text: str) -> str:
    return f" {' '.join(_tokens(text))} "


@lru_cache(maxsize=1024)
def _tokens(text: str) -> tuple[str, ...]:
    text = _ISO.sub(_spelled, _THOUSANDS.sub("", text))
    text = unicodedata.normalize("NFKD", text).casefold()
    if not text.isascii():
        text = "".join(letter for letter in text if not unicodedata.combining(letter))
    text = _ACRONYM.sub(lambda found: found[0].replace(".", ""), _POSSESSIVE.sub("", text))
    words = [word for word in _TOKEN.findall(text) if word not in _ARTICLES]
    if "%" in text or _DIGIT.search(text):
        words = [_word(word) for word in words]
    words = words if _NUMBER.keys().isdisjoint(words) else _counted(words)
    return tuple(words if _MONTH.keys().isdisjoint(words) else _dated(words))


def _spelled(date: re.Match[str]) -> str:
    month = int(date[2])
    return f"{date[3]} {_MONTHS[month - 1]} {date[1]}" if 1 <= month <= 12 else date[0]


def _word(word: str) -> str:
    if word == "%":
        return "percent"
    if word[0].isdigit():
        ordinal = _ORDINAL.fullmatch(word)
        word = ordinal[1] if ordinal else word
        return (word.lstrip("0") or "0") if word.isdigit() and len(word) < 3 else word
    return word


def _counted(words: Iterable[str]) -> list[str]:
    """Number words as digits: "twenty two" is 22."""
    counted: list[str] = []
    tens = 0
    for word in words:
        value = _NUMBER.get(word)
        if value is not None and tens and 0 < value < 10:
            counted[-1] = str(tens + value)
        else:
            counted.append(word if value is None else str(value))
        tens = value if value is not None and value >= 20 else 0
    return counted


def _dated(words: list[str]) -> list[str]:
    """Each date as year, month, day, as much of it as there is, so that a part of it follows."""
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
    return word.isdigit() and len(word) < 3 and 1 <= int(word) <= 31


def _is_year(word: str) -> bool:
    return word.isdigit() and 3 <= len(word) <= 4
