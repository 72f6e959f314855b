"""What is done to texts alike for every BM25 store: the words of a query are taken, diacritics
folded, and scripts without spaces cut into pairs.

Each word counts once, so a repeated word does not outweigh the others; two words with the same
stem (`church`, `churches`) count twice, as in Lucene. The store's analyzer turns words into
tokens. This module removes only characters that no token contains, and with them the syntax of
every query language.

tantivy folds diacritics in its analyzer. Elasticsearch's `english` analyzer does not, and its
`asciifolding` filter is not available everywhere, so indexed and searched texts are folded
here.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_LETTERS = {
    "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O",
    "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "ł": "l", "Ł": "L", "þ": "th", "Þ": "TH",
    "ı": "i", "ħ": "h", "Ħ": "H",
}  # fmt: skip


@lru_cache(None)
def _folded(letter: str) -> str:
    if letter in _LETTERS:
        return _LETTERS[letter]
    parts = unicodedata.normalize("NFKD", letter)
    plain = "".join(part for part in parts if part.isascii())
    marks = [part for part in parts if not part.isascii()]
    whole = plain.isalnum() and all(unicodedata.category(part)[0] == "M" for part in marks)
    return plain if whole else letter


_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def fold(text: str) -> str:
    """Remove diacritics (`Bellíni`). Characters without a plain form (`北京`) stay."""
    if text.isascii():
        return text
    # Most letters are plain, so looking up the others is faster than translating the whole text.
    return _NOT_ASCII.sub(lambda found: _folded(found[0]), unicodedata.normalize("NFC", text))


# Runs of Han, kana, Hangul, Thai, Lao, Khmer and Burmese, which have no spaces between words, are
# indexed and searched as overlapping pairs of their characters, like those of Lucene's
# `cjk_bigram`. Marks that some tokenizers take for the end of a word are left out: tones, viramas.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)
_TONES = re.compile("[\u0e47-\u0e4e\u0ec8-\u0ece\u1037-\u103a\u17c9-\u17d3\u17dd]")


def paired(text: str) -> str:
    """Return the text with runs of unspaced scripts as pairs of characters, between spaces."""
    return text if text.isascii() else _UNSPACED.sub(_pairs, text)


def _pairs(run: re.Match[str]) -> str:
    kept = _TONES.sub("", run[0])
    pairs = [kept[n : n + 2] for n in range(max(1, len(kept) - 1))]
    return f" {' '.join(pairs)} "


MOST_TOKENS = 500  # per query; each is a clause on two fields, and 1,024 clauses always work
LONGEST_TOKEN = 255  # Elasticsearch's standard tokenizer cuts longer tokens

_INNER = ".,'’"  # between two letters these do not end a word (Unicode UAX 29)
_JOINERS = "\u200c\u200d"
_WORD = re.compile(rf"[^\s{_INNER}]+(?:[{_INNER}][^\s{_INNER}]+)*")


@lru_cache(None)
def _kept(char: str) -> str:
    """Keep letters, digits and marks."""
    stays = unicodedata.category(char)[0] in "LNM" or char in f"_{_INNER}{_JOINERS}"
    return char if stays else " "


def query_words(text: str) -> list[str]:
    """Return the words of a query, folded and in lower case, up to `MOST_TOKENS` tokens."""
    words: list[str] = []
    room = MOST_TOKENS
    plain = "".join(map(_kept, paired(fold(text)).lower()))
    for word in dict.fromkeys(_WORD.findall(plain)):
        # Limit tokens, not words: a script without spaces has one token per character.
        room -= 1 + len(re.findall(f"[{_INNER}]", word)) + len(word) // LONGEST_TOKEN
        room -= 0 if word.isascii() else len(word) - 1
        if room < 0:
            break
        words.append(word)
    return words
