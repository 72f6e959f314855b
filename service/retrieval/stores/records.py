"""A passage as stores keep it: its id, its fields, and its rank."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from service.core.domain import Passage, ScoredPassage
from service.core.errors import StoreError
from service.retrieval.base import ACCESS, EVERYTHING, Filter, Principals
from service.retrieval.documents import PassageRecord

# Point ids are UUIDs derived from passage ids, so a repeated upsert overwrites the same point.
_NAMESPACE = uuid.UUID("6f0c6a0e-7a52-4c39-9a0e-3f5a1f2f6f41")
# The payload fields that a search reads, and those that a comparison of stores reads.
PASSAGE_FIELDS = ["passage_id", "title", "text", "metadata", "digest"]
HASH_FIELDS = ["passage_id", "content_hash"]


def name_id(namespace: uuid.UUID, name: str) -> str:
    """Return `str(uuid.uuid5(namespace, name))` (RFC 9562, section 5.5) in a third of its time,
    since ingestion computes two per passage."""
    digest = hashlib.sha1(namespace.bytes + name.encode(), usedforsecurity=False).digest()
    octets = bytearray(digest[:16])
    octets[6] = octets[6] & 0x0F | 0x50
    octets[8] = octets[8] & 0x3F | 0x80
    text = octets.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def point_id(passage_id: str) -> str:
    """Return the id of a passage's point in Qdrant."""
    return name_id(_NAMESPACE, passage_id)


def fields_of(record: PassageRecord) -> dict[str, Any]:
    """Return a passage as a JSON object, without its part."""
    passage = record.passage
    return {
        "passage_id": passage.passage_id,
        "title": passage.title,
        "text": passage.text,
        "metadata": dict(passage.metadata),
        "document_id": record.document_id,
        "content_hash": record.content_hash,
        "digest": digest(passage),
    }


def digest(passage: Passage) -> int:
    return digest_of(passage.passage_id, passage.title, passage.text)


def digest_of(passage_id: str, title: str, text: str) -> int:
    """Return what shows whether a stored passage is read as it was written."""
    return zlib.crc32(f"{passage_id}\0{title}\0{text}".encode(errors="surrogatepass"))


def payload_of(record: PassageRecord) -> dict[str, Any]:
    """Return what Qdrant stores with a vector."""
    metadata = record.passage.metadata
    restricted = {ACCESS: metadata[ACCESS]} if ACCESS in metadata else {}
    return {**fields_of(record), "filter": metadata_tokens(metadata), **restricted}


def passage_of(fields: Mapping[str, Any]) -> Passage:
    """Return the stored passage. Raises StoreError if it is damaged."""
    passage_id, title, text = fields["passage_id"], fields["title"], fields["text"]
    if fields.get("digest", found := digest_of(passage_id, title, text)) != found:
        raise StoreError(
            f"passage {passage_id[:200]!r} is damaged; revelator check --collection NAME shows the "
            "file, and --repair rebuilds it"
        )
    return Passage(
        passage_id=passage_id,
        title=title,
        text=text,
        metadata=fields["metadata"],
    )


def record_of(payload: Mapping[str, Any], parts: int) -> PassageRecord:
    """Return the passage of a payload; its document has `parts` passages."""
    document_id, passage = payload["document_id"], passage_of(payload)
    number = passage.passage_id.removeprefix(document_id).removeprefix("#")
    return PassageRecord(
        passage=passage,
        document_id=document_id,
        content_hash=payload["content_hash"],
        part=int(number) - 1 if number else 0,
        parts=parts,
    )


def ranked(hits: Iterable[tuple[float, Passage]]) -> list[ScoredPassage]:
    """Rank passages by score; ties are broken by passage id."""
    best = sorted(hits, key=lambda hit: (-hit[0], hit[1].passage_id))
    return [ScoredPassage(passage, rank, score) for rank, (score, passage) in enumerate(best, 1)]


def ranked_points(points: Sequence[Any]) -> list[ScoredPassage]:
    """Rank Qdrant points, which have `score` and `payload`."""
    return ranked((float(point.score), passage_of(point.payload)) for point in points)


class PointPages:
    """The listing of a store of Qdrant points."""

    def payloads(self, fields: list[str] | bool = True) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Yield pages of what is stored with every vector, or of these `fields` of it."""
        points, offset = self._page(None, fields)
        yield [point.payload for point in points]
        while offset is not None:
            points, offset = self._page(offset, fields)
            yield [point.payload for point in points]

    def _page(self, offset: Any, fields: list[str] | bool) -> tuple[Sequence[Any], Any]:
        """Return the points from `offset` on, and where the next page begins, if there is one."""
        raise NotImplementedError


def hashes_of(points: Sequence[Any]) -> dict[str, str]:
    """Return the content hash of each point by passage id."""
    return {point.payload["passage_id"]: point.payload["content_hash"] for point in points}


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
    return sorted(_token(ACCESS, each) for each in principals)


def unknown_fields(filter: Filter, known: Iterable[str]) -> list[str]:
    return sorted(set(filter) - set(known))


def _token(field: str, value: str | int | float) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    token = f"{field}={_json(value)}"
    if len(token.encode()) <= LONGEST_FILTER:
        return token
    return "#" + hashlib.sha256(token.encode()).hexdigest()


def _json(value: str | int | float) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # of any size
    return orjson.dumps(value).decode()


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


class _Table(dict[int, str]):
    """A table for str.translate, which computes the `form` of a character at its first use."""

    def __init__(self, form: Callable[[str], str], known: Iterable[tuple[int, str]] = ()) -> None:
        super().__init__(known)
        self._form = form

    def __missing__(self, code: int) -> str:
        self[code] = self._form(chr(code))
        return self[code]


def _folded(letter: str) -> str:
    parts = unicodedata.normalize("NFKD", letter)
    plain = "".join(part for part in parts if part.isascii())
    marks = [part for part in parts if not part.isascii()]
    whole = plain.isalnum() and all(unicodedata.category(part)[0] == "M" for part in marks)
    return plain if whole else letter


_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_FOLDED = _Table(_folded, ((ord(letter), plain) for letter, plain in _LETTERS.items()))


def fold(text: str) -> str:
    """Remove diacritics (`Bellíni`). Characters without a plain form (`北京`) stay."""
    if text.isascii():
        return text
    # Most letters are plain, so looking up the others is faster than translating the whole text.
    return _NOT_ASCII.sub(_plain, unicodedata.normalize("NFC", text))


def _plain(letter: re.Match[str]) -> str:
    return _FOLDED[ord(letter[0])]


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


def _kept(char: str) -> str:
    """Keep letters, digits and marks."""
    stays = unicodedata.category(char)[0] in "LNM" or char in f"_{_INNER}{_JOINERS}"
    return char if stays else " "


_KEPT = _Table(_kept)


def query_words(text: str) -> list[str]:
    """Return the words of a query, folded and in lower case, up to `MOST_TOKENS` tokens."""
    words: list[str] = []
    room = MOST_TOKENS
    for word in dict.fromkeys(_WORD.findall(paired(fold(text)).lower().translate(_KEPT))):
        # Limit tokens, not words: a script without spaces has one token per character.
        room -= 1 + len(re.findall(f"[{_INNER}]", word)) + len(word) // LONGEST_TOKEN
        room -= 0 if word.isascii() else len(word) - 1
        if room < 0:
            break
        words.append(word)
    return words
