"""The words of a query, identical for every BM25 store, and the folding of diacritics.

Each word counts once, so a repeated word does not outweigh the others; two words with the same stem
(`church`, `churches`) count twice, as in Lucene. The store's analyzer turns words into tokens. This
module removes only characters that no token contains, and with them the syntax of every query
language.

tantivy folds diacritics in its analyzer. Elasticsearch's `english` analyzer does not, and its
`asciifolding` filter is not available everywhere, so indexed and searched texts are folded here.
"""

from __future__ import annotations

import re
import unicodedata

_LETTERS = {
    "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O",
    "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "ł": "l", "Ł": "L", "þ": "th", "Þ": "TH",
    "ı": "i", "ħ": "h", "Ħ": "H",
}  # fmt: skip


class _Folded(dict[int, str]):
    """A table for str.translate, which computes the folded form of a character at its first use."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        plain = "".join(c for c in unicodedata.normalize("NFKD", letter) if c.isascii())
        marks = [c for c in unicodedata.normalize("NFKD", letter) if not c.isascii()]
        whole = plain.isalnum() and all(unicodedata.category(c)[0] == "M" for c in marks)
        self[code] = plain if whole else letter
        return self[code]


_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_FOLDED = _Folded({ord(letter): plain for letter, plain in _LETTERS.items()})


def fold(text: str) -> str:
    """Remove diacritics (`Bellíni`). Characters without a plain form (`北京`) stay."""
    if text.isascii():
        return text
    # Most letters are plain, so looking up the others is faster than translating the whole text.
    return _NOT_ASCII.sub(_plain, unicodedata.normalize("NFC", text))


def _plain(letter: re.Match[str]) -> str:
    return _FOLDED[ord(letter[0])]


MOST_TOKENS = 500  # per query; each is a clause on two fields, and 1,024 clauses always work
LONGEST_TOKEN = 255  # Elasticsearch's standard tokenizer cuts longer tokens

_INNER = ".,'’"  # between two letters these do not end a word (Unicode UAX 29)
_JOINERS = "\u200c\u200d"
_WORD = re.compile(rf"[^\s{_INNER}]+(?:[{_INNER}][^\s{_INNER}]+)*")


class _Kept(dict[int, str]):
    """A table for str.translate, which keeps letters, digits and marks; filled at a character's
    first use."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        stays = unicodedata.category(char)[0] in "LNM" or char in f"_{_INNER}{_JOINERS}"
        self[code] = char if stays else " "
        return self[code]


_KEPT = _Kept()


def query_words(text: str) -> list[str]:
    """Return the words of a query, folded and in lower case, up to `MOST_TOKENS` tokens."""
    words: list[str] = []
    room = MOST_TOKENS
    for word in dict.fromkeys(_WORD.findall(fold(text).lower().translate(_KEPT))):
        # Limit tokens, not words: a script without spaces has one token per character.
        room -= 1 + len(re.findall(f"[{_INNER}]", word)) + len(word) // LONGEST_TOKEN
        room -= 0 if word.isascii() else len(word) - 1
        if room < 0:
            break
        words.append(word)
    return words
