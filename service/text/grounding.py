"""Whether texts support an answer: the same words, numbers and dates in any form (pure).

Answers are compared by `service.text.words.normal_words`: "5,199" equals "5199", "two" equals "2",
and "March 4, 1851" equals "4 March 1851", which also supports "March 1851" and "1851".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from service.text.words import OTHER_FORMS, STOP_WORDS, normal_words

SHORT: Final = 4  # words: a longer answer may be a sentence, which no passage contains verbatim
_CONNECTIVES: Final = STOP_WORDS - {"no", "nor", "not"}

_BEFORE = ' \n("'  # of a word, these end no other, and are no part of a number
_AFTER = ' \n;:?!)"'
_CAPITAL = re.compile(r"(?<!^)\b[A-Z][\w'’.-]*")
_YES_NO = re.compile(r"\W*(?:yes|no)\b(?:\W*\Z|\s*[,;:.!–—-](?!\s*\d))", re.IGNORECASE)
_JOINT = re.compile(r"[,;]\s|\s(?:&&?|and|or|/)\s|[\n()]", re.IGNORECASE)


def bears(text: str, answer: str) -> bool:
    """Whether `text` contains `answer` as a whole. No text contains an answer without words."""
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
    the question or, if it has no names, more than half of its words; by the fewest such texts.
    """
    whole = bearing(texts, answer)
    if whole and (len(normal_words(answer)) > 1 or not is_yes_no(answer)):
        return whole
    if is_yes_no(answer):
        return _tells_of(_content(question), _names(question), texts, fewest=True)
    items = [item for item in _JOINT.split(answer) if _needle(item)]
    if len(items) > 1:
        borne = [bearing(texts, item) for item in items]
        if all(borne):
            return sorted(set().union(*borne))
    if len(_needle(answer)) <= SHORT:
        return []
    asked = set(normal_words(question))
    new = {word for word in _content(answer) if word not in asked} or _content(answer)
    return _tells_of(new, _names(answer) & new, texts)


def is_yes_no(answer: str) -> bool:
    """Whether the answer says yes or no, perhaps with a reason ("No. 5" and "No Country for Old
    Men" do not)."""
    return _YES_NO.match(answer) is not None


def _tells_of(
    words: set[str], names: set[str], texts: Sequence[str], *, fewest: bool = False
) -> list[int]:
    """Return the texts that contain some of the decisive words, if all texts together contain
    enough; `fewest`: without those that add none to others.
    """
    wanted = {word: _Wanted([word]) for word in words | names}
    held: list[set[str]] = []
    for text in texts:
        folded = text.lower()
        held.append({word for word, form in wanted.items() if form.stands_in(text, folded)})
    together = set().union(*held)
    if not words or not names <= together or 2 * len(together & words) <= len(words):
        return []
    telling = [found & (names or words) for found in held]
    if not fewest:
        return [index for index, found in enumerate(telling) if found]
    chosen: list[int] = []
    while any(telling):
        chosen.append(max(range(len(telling)), key=lambda index: len(telling[index])))
        telling = [found - telling[chosen[-1]] for found in telling]
    return sorted(chosen)


def _needle(answer: str) -> list[str]:
    """Return the words of an answer without the connectives around it ("in 1899" is 1899)."""
    words = list(normal_words(answer))
    begin, end = 0, len(words)
    while begin < end and words[begin] in _CONNECTIVES:
        begin += 1
    while end > begin and words[end - 1] in _CONNECTIVES:
        end -= 1
    return words[begin:end] or words


def _content(text: str) -> set[str]:
    return {word for word in normal_words(text) if word not in STOP_WORDS}


def _names(text: str) -> set[str]:
    """Return the words with a capital, except for the first word of all, and the numbers."""
    capitals = _content(" ".join(_CAPITAL.findall(text.strip())))
    return capitals | {word for word in normal_words(text) if word[0].isdigit()}


class _Wanted:
    """Consecutive words that are searched for in texts, in any form.

    A text is split into words only if a look at its characters does not decide: most texts contain
    an answer literally, or lack one of its words.
    """

    __slots__ = ("sure", "whole", "written")

    def __init__(self, words: Sequence[str]) -> None:
        self.whole = f" {' '.join(words)} "
        # Those that a text has letter by letter. Numbers of two digits may be spelled or have a
        # leading zero; names of months and numbers have other forms.
        self.sure = {
            word
            for word in words
            if word.isascii()
            and ((word.isdigit() and len(word) > 2) or (word.isalpha() and word not in OTHER_FORMS))
        }
        alone = len(words) == 1 or not any(map(str.isdigit, words))  # dates have many orders
        certain = alone and self.sure.issuperset(words) and words[-1] not in _CONNECTIVES
        self.written = " ".join(words) if certain and all(len(w) > 1 for w in words) else ""

    def stands_in(self, text: str, folded: str) -> bool:
        """Whether the words are in `text`; `folded` is `text` in lower case."""
        if self.written and _is_apart(self.written, folded):
            return True
        possible = _among(self.sure, folded)
        if not possible and not text.isascii():
            possible = _among(self.sure, _in_ascii(text))
        return possible and self.whole in _plain(text)


def _is_apart(written: str, folded: str) -> bool:
    """Whether `written` occurs in a text, in lower case, without being part of another word, number
    or acronym.
    """
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


def _among(words: Iterable[str], folded: str) -> bool:
    """Whether each word may occur in the text, whose acronyms lose their dots, and whose numbers
    lose the separators of thousands.
    """
    return all(
        word in folded or "'s." in folded or word in _letters(folded)  # 's may be in an acronym
        for word in words
    )


# The words of an answer are looked for in the same texts, one after the other.
@lru_cache(maxsize=64)
def _in_ascii(text: str) -> str:
    text = text.replace("\u00a0", "").replace("\u2009", "").replace("\u202f", "")
    folded = unicodedata.normalize("NFKD", text).casefold().replace("’", "'")
    return folded.encode("ascii", "ignore").decode()


@lru_cache(maxsize=64)
def _letters(folded: str) -> str:
    return folded.replace(".", "").replace(",", "").replace("'", "")


@lru_cache(maxsize=512)
def _plain(text: str) -> str:
    return f" {' '.join(normal_words(text))} "
