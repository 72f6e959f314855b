"""Counts MiniLM's word pieces without `tokenizers`, so that every install cuts passages alike.

BERT's uncased pipeline: clean, space out CJK, lower-case, strip accents, split at punctuation,
greedy longest match. `service/models/minilm/vocab.txt` is the vocabulary of all-MiniLM-L6-v2
(BERT's, Apache-2.0).
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from importlib import resources

LONGEST_WORD = 100  # characters; a longer word is one unknown piece

_CJK = re.compile(
    "([\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f])"
)
_ASCII_WORDS = re.compile("[a-z0-9]+|[^a-z0-9]")  # what `_split` finds, several times faster


def count_pieces(text: str) -> int:
    """Word pieces of `text`, without the two that frame every input."""
    return sum(map(_count_token, text.split()))


@lru_cache(maxsize=65_536)
def _count_token(token: str) -> int:
    if token.isascii() and token.isprintable():
        return sum(map(_count_word, _ASCII_WORDS.findall(token.lower())))
    return _count_any(token)


def _count_any(token: str) -> int:
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
    """Words and single punctuation marks of a text without space."""
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
    vocabulary, start, pieces = _vocabulary(), 0, 0
    while start < len(word):
        prefix = "##" if start else ""
        for end in range(len(word), start, -1):
            if prefix + word[start:end] in vocabulary:
                break
        else:
            return 1  # an unknown word
        start, pieces = end, pieces + 1
    return pieces


@cache
def _vocabulary() -> frozenset[str]:
    file = resources.files("service") / "models" / "minilm" / "vocab.txt"
    return frozenset(file.read_text(encoding="utf-8").splitlines())
