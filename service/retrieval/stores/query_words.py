"""The words of a query, the same for every BM25 store.

Each word counts once, so that a repeated one cannot drown the others; words that one stem unites
(`church`, `churches`) count twice, as in Lucene. Which tokens they become, the store's analysis
says: here only what can be in none is left out, and with it every query language's syntax.
"""

from __future__ import annotations

import re
import unicodedata

from service.retrieval.stores.folding import fold

MOST_TOKENS = 500  # of a query; each is a clause on two fields, and 1,024 clauses always work
LONGEST_TOKEN = 255  # Elasticsearch's standard tokenizer cuts longer ones

_INNER = ".,'’"  # between two letters they do not end a word (Unicode's rules, UAX 29)
_JOINERS = "\u200c\u200d"
_WORD = re.compile(rf"[^\s{_INNER}]+(?:[{_INNER}][^\s{_INNER}]+)*")


class _Kept(dict[int, str]):
    """For str.translate: letters, digits and marks stay; worked out at a character's first use."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        stays = unicodedata.category(char)[0] in "LNM" or char in f"_{_INNER}{_JOINERS}"
        self[code] = char if stays else " "
        return self[code]


_KEPT = _Kept()


def query_words(text: str) -> list[str]:
    """Folded and in lower case, in order, at most as many as are `MOST_TOKENS` tokens."""
    words: list[str] = []
    room = MOST_TOKENS
    for word in dict.fromkeys(_WORD.findall(fold(text).lower().translate(_KEPT))):
        # At most so many tokens: a script without spaces has one for each character.
        room -= 1 + len(re.findall(f"[{_INNER}]", word)) + len(word) // LONGEST_TOKEN
        room -= 0 if word.isascii() else len(word) - 1
        if room < 0:
            break
        words.append(word)
    return words
