"""A passage as stores keep it: its id, its fields, and its rank."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import orjson

from service.core.domain import Passage, ScoredPassage
from service.core.errors import StoreError
from service.retrieval.base import ACCESS, EVERYTHING, Filter, Principals
from service.retrieval.documents import PassageRecord


def fields_of(record: PassageRecord) -> dict[str, Any]:
    """Return a passage as a JSON object."""
    passage = record.passage
    return {
        "passage_id": passage.passage_id,
        "title": passage.title,
        "text": passage.text,
        "metadata": dict(passage.metadata),
        "document_id": record.document_id,
        "content_hash": record.content_hash,
        "part": record.part,
        "parts": record.parts,
        "digest": digest(passage),
    }


def digest(passage: Passage) -> int:
    """Return what shows whether a stored passage is read as it was written."""
    text = f"{passage.passage_id}\0{passage.title}\0{passage.text}"
    return zlib.crc32(text.encode(errors="surrogatepass"))


def passage_of(fields: Mapping[str, Any]) -> Passage:
    """Return the stored passage. Raises StoreError if it is damaged."""
    passage = Passage(fields["passage_id"], fields["title"], fields["text"], fields["metadata"])
    if "digest" in fields and fields["digest"] != digest(passage):
        raise StoreError(
            f"passage {passage.passage_id[:200]!r} is damaged; revelator check --collection NAME "
            "shows the file, and --repair rebuilds it"
        )
    return passage


def record_of(fields: Mapping[str, Any]) -> PassageRecord:
    """Return the stored passage and its place in its document. Raises StoreError."""
    own = {name: fields[name] for name in ("document_id", "content_hash", "part", "parts")}
    return PassageRecord(passage_of(fields), **own)


def ranked(hits: Iterable[tuple[float, Passage]]) -> list[ScoredPassage]:
    """Rank passages by score; ties are broken by passage id."""
    best = sorted(hits, key=lambda hit: (-hit[0], hit[1].passage_id))
    return [ScoredPassage(passage, rank, score) for rank, (score, passage) in enumerate(best, 1)]


# Metadata filters as keyword tokens `field=value`, the same in every store.
#
# Two values are the same token when they are equal in JSON: 1 and 1.0 are, true and 1 are not. A
# field that holds a list has a token for each element; objects and nulls cannot be filtered on.

LONGEST_FILTER = 200  # bytes; a longer one is stored as its hash
RESTRICTED = ACCESS  # the token of every passage that not everyone may see; no field has such a one


def metadata_tokens(metadata: Mapping[str, Any]) -> list[str]:
    """Return every token of a passage with this metadata."""
    tokens: dict[str, None] = {RESTRICTED: None} if ACCESS in metadata else {}
    for field, value in metadata.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str | int | float):
                tokens[_token(field, item)] = None
    return list(tokens)


def filter_tokens(filter: Filter) -> list[list[str]]:
    """Return, for each field of the filter, the tokens of which a passage must have one."""
    return [[_token(field, value) for value in values] for field, values in filter.items()]


def principal_tokens(principals: Principals) -> list[str] | None:
    """Return the tokens of which a passage that is `RESTRICTED` must have one; None if every
    passage may be seen."""
    if principals >= EVERYTHING:
        return None
    return sorted(_token(ACCESS, name) for name in principals)


def _token(field: str, value: str | int | float) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    whole = isinstance(value, int) and not isinstance(value, bool)  # of any size
    token = f"{field}={value if whole else orjson.dumps(value).decode()}"
    if len(token.encode()) <= LONGEST_FILTER:
        return token
    return "#" + hashlib.sha256(token.encode()).hexdigest()


# The words of a query, identical for every BM25 store, and the folding of diacritics.
#
# Each word counts once, so a repeated word does not outweigh the others; two words with the same
# stem (`church`, `churches`) count twice, as in Lucene. The store's analyzer turns words into
# tokens. This module removes only characters that no token contains, and with them the syntax of
# every query language.
#
# tantivy folds diacritics in its analyzer. Elasticsearch's `english` analyzer does not, and its
# `asciifolding` filter is not available everywhere, so indexed and searched texts are folded
# here.

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
