"""Counts MiniLM's word pieces without `tokenizers`, so that all installations cut passages alike.

BERT's uncased pipeline: clean, space out CJK, lower-case, strip accents, split at punctuation,
greedy longest match. `service/models/minilm/vocab.txt` is the vocabulary of all-MiniLM-L6-v2
(BERT's, Apache-2.0).
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from importlib import resources
from itertools import accumulate

LONGEST_WORD = 100  # characters; a longer word is one unknown piece
MOST_KEPT = 100_000  # words whose number of pieces is cached

_CJK = re.compile(
    "([\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f])"
)
_ASCII_WORDS = re.compile(r"[a-z0-9]+|[^a-z0-9\s]")  # what `_split` finds, several times faster
_TOKEN = re.compile(r"\S+")


def count_pieces(text: str) -> int:
    """Return the number of word pieces of `text`, without the two that frame every input."""
    return sum(map(_TOKENS.__getitem__, text.split()))


class Pieces:
    """The word pieces of a text, which is tokenised once; spans of it are counted by look-up."""

    def __init__(self, text: str) -> None:
        self._text = text
        tokens = [(match.start(), match.group()) for match in _TOKEN.finditer(text)]
        self._starts = [start for start, _ in tokens]
        counts = [_TOKENS[token] for _, token in tokens]
        self._before = [0, *accumulate(counts)]  # pieces before each token, and in all

    def count(self, start: int, end: int) -> int:
        """Return `count_pieces(text[start:end])`; positions in code points."""
        if self._cuts_a_token(start) or self._cuts_a_token(end):
            return count_pieces(self._text[start:end])
        first, after = bisect_left(self._starts, start), bisect_left(self._starts, end)
        return self._before[after] - self._before[first]

    def _cuts_a_token(self, place: int) -> bool:
        """Whether a place is inside a token, whose halves have other pieces than the whole."""
        text = self._text
        return 0 < place < len(text) and not (text[place - 1].isspace() or text[place].isspace())


class _Counts(dict[str, int]):
    """Numbers of word pieces by word or token, each computed at its first use. Cleared when
    full.
    """

    def __init__(self, count: Callable[[str], int]) -> None:
        super().__init__()
        self._count = count

    def __missing__(self, word: str) -> int:
        if len(self) >= MOST_KEPT:
            self.clear()
        found = self[word] = self._count(word)
        return found


def _count_token(token: str) -> int:
    if token.isascii() and token.isprintable():
        return sum(map(_WORDS.__getitem__, _ASCII_WORDS.findall(token.lower())))
    cleaned = "".join(filter(_is_kept, map(_space, token)))
    if not cleaned.isascii():
        cleaned = _strip_accents(_CJK.sub(r" \1 ", cleaned))
    return sum(_count_word(word) for part in cleaned.lower().split() for word in _split(part))


def _strip_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(char for char in decomposed if unicodedata.category(char) != "Mn")


def _space(char: str) -> str:
    return " " if char.isspace() else char


def _is_kept(char: str) -> bool:
    return char == " " or (char != "\ufffd" and not unicodedata.category(char).startswith("C"))


def _split(part: str) -> list[str]:
    """Return the words and single punctuation marks of a text without space."""
    words, start = [], 0
    for index, char in enumerate(part):
        if _is_punctuation(char):
            if start < index:
                words.append(part[start:index])
            words.append(char)
            start = index + 1
    if start < len(part):
        words.append(part[start:])
    return words


def _is_punctuation(char: str) -> bool:
    if char.isascii():
        return not char.isalnum()
    return unicodedata.category(char).startswith("P")


def _count_word(word: str) -> int:
    if len(word) > LONGEST_WORD:
        return 1
    known, going_on = _vocabulary()
    start, pieces = 0, 0
    while start < len(word):
        for end in range(len(word), start, -1):
            if word[start:end] in known:
                break
        else:
            return 1  # an unknown word
        start, pieces, known = end, pieces + 1, going_on
    return pieces


@cache
def _vocabulary() -> tuple[frozenset[str], frozenset[str]]:
    """Return the pieces that begin a word, and those that continue one, without their ##."""
    file = resources.files("service") / "models" / "minilm" / "vocab.txt"
    pieces = file.read_text(encoding="utf-8").splitlines()
    going_on = frozenset(piece[2:] for piece in pieces if piece.startswith("##"))
    return frozenset(pieces), going_on


_WORDS, _TOKENS = _Counts(_count_word), _Counts(_count_token)
