"""What is done to texts alike for every BM25 store: the words of a query are taken, diacritics
folded, scripts without spaces cut into pairs, and the language of a new collection is found.

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
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, get_args

from service.retrieval.base import Analysis
from service.text.words import letter_words

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


# In which language texts are, as far as it matters for the analysis of their words.

TEXTS, CHARACTERS = 500, 2_000  # of a first batch and of each of its texts that are read
FEWEST: Final = 5  # common words of the language
LEAST: Final = 0.05  # share of them of all words
TIMES: Final = 3  # as many as of any other language
_COMMON: Final = {  # words; those of several languages do not count
    "arabic": "في على إلى التي الذي عن مع هذا هذه كان كانت أن أو بعد بين كما ذلك قبل خلال",
    "danish": "af ikke blev også efter mange hvor nogle mellem meget siden",
    "dutch": "het een van zijn werd voor niet ook worden naar bij deze tussen heeft",
    "english": "the of and by was that with from were which this are their has have been not",
    "finnish": "ja oli myös joka mutta sekä hänen jotka mukaan sitä kun vuonna ovat että hän",
    "french": "les et des est une dans du pour qui par sur pas sont avec ses aux cette été",
    "german": "der die und das den von mit ist dem auf für nicht wurde eine sich auch als wird",
    "greek": "και το να του της με για που από των την είναι τον τα στην στο ήταν",
    "hungarian": "az és hogy nem egy volt meg vagy mint ez azonban után csak számára",
    "italian": "il di che è della per dei sono gli anche nel alla delle dal più stato",
    "norwegian": "av ikke ble også etter mange hvor noen mellom mye siden",
    "portuguese": "do da em os uma dos ao não na foi são das pela pelo mais também às",
    "romanian": "și în pe din care este cu mai fost sunt lui către după sau pentru ale",
    "russian": "и в на что это как был была было были также для из после которые или чтобы по",
    "spanish": "el los y las del por una con fue para como su más pero esta sus entre",
    "swedish": "och att som är av på inte till från också efter när eller sedan mycket blev",
    "turkish": "ve bir bu için olarak olan ile daha sonra gibi kadar tarafından ise göre",
    # Without an analysis, so that they are not taken for one of the above.
    "bulgarian": "и в на се са със който от за като през",
    "catalan": "el els amb per va del més una les que i van ser",
    "ukrainian": "в на та що від який які було за його",
}


def _own_words() -> dict[str, str]:
    """Return the language of each word that only one language has."""
    counted = Counter(word for words in _COMMON.values() for word in words.split())
    return {
        word: language
        for language, words in _COMMON.items()
        for word in words.split()
        if counted[word] == 1
    }


_OWN: Final = _own_words()


def analysis_for(texts: Iterable[str]) -> Analysis:
    """Return the language of texts if it is certain, else `english`, which serves mixed and other
    languages: words folded, those of scripts without spaces in pairs of characters."""
    total, found = 0, Counter[str]()
    for text, _ in zip(texts, range(TEXTS), strict=False):
        words = letter_words(paired(text[:CHARACTERS].lower()))
        total += len(words)
        found.update(_OWN[word] for word in words if word in _OWN)
    (best, most), (_, other) = [*found.most_common(2), ("", 0), ("", 0)][:2]
    sure = most >= max(FEWEST, LEAST * total, TIMES * other)
    return next(
        (analysis for analysis in get_args(Analysis) if sure and analysis == best), "english"
    )
