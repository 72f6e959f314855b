"""Documents: which input is valid, and the form in which passages are stored."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from service.core.domain import Passage
from service.core.errors import InvalidRequest, StoreError
from service.retrieval.base import ACCESS, EVERYTHING, Filter, Principals
from service.text import sentences
from service.text.tables import ROW
from service.text.wordpiece import Pieces, count_pieces

LONGEST_ID = 512  # bytes of UTF-8; stores index an id as one term
LONGEST_TITLE = 1_000  # characters
MOST_FIELDS = 64  # metadata fields of one document
MOST_PRINCIPALS = 256  # in the field `access` of one document
LONGEST_PRINCIPAL = 256  # characters
# Objects and lists inside each other in one metadata field. Qdrant's client for gRPC fails on 32
# objects, the embedded Qdrant on 126 levels, and orjson on 254.
MOST_LEVELS = 30
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PASSAGE_ID = re.compile(r"#\d+\Z")
_SORTED = orjson.OPT_SORT_KEYS


class BadDocument(InvalidRequest):
    """An invalid document; the text says why."""


@dataclass(frozen=True)
class Document:
    """A document as received. `metadata` holds every field except id, title and text."""

    id: str
    title: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of title, text and metadata. Documents with equal hashes are equal."""
        content = [self.title, self.text, dict(self.metadata)]
        return hashlib.sha256(orjson.dumps(content, option=_SORTED)).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """Return the object that `parse_document` makes this of."""
        return {**self.metadata, "id": self.id, "title": self.title, "text": self.text}


@dataclass(frozen=True, slots=True)
class PassageRecord:
    """A passage as stored: number `part`, from 0, of the `parts` passages of its document."""

    passage: Passage
    document_id: str
    content_hash: str
    part: int
    parts: int


def parse_document(value: object) -> Document:
    """Parse a decoded JSON object into a document. Raises BadDocument."""
    if not isinstance(value, dict):
        kind = "null" if value is None else _kind(value)
        raise BadDocument(f"a document must be a JSON object, not {kind}")
    title, text = value.get("title"), value.get("text")
    if not isinstance(text, str):
        raise BadDocument(f"text must be a string, but is {_kind(text)}")
    if not text.strip():
        raise BadDocument("text is empty")
    if title is None:
        title = ""
    if not isinstance(title, str):
        raise BadDocument(f"title must be a string, but is {_kind(title)}")
    if len(title) > LONGEST_TITLE:
        raise BadDocument(f"title is longer than {LONGEST_TITLE:,} characters")
    metadata = {key: item for key, item in value.items() if key not in {"id", "title", "text"}}
    _check_metadata(metadata)
    return Document(_document_id(value.get("id"), title, text), title, text, metadata)


def content_id(title: str, text: str) -> str:
    """Return the id of a document without one."""
    return hashlib.sha256(orjson.dumps([title, text])).hexdigest()[:32]


def _document_id(given: object, title: str, text: str) -> str:
    _check_text("title", title)
    _check_text("text", text)
    if given is None:
        return content_id(title, text)
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    if not isinstance(given, str):
        raise BadDocument(f"id must be a string or an integer, not {_kind(given)}")
    if not given.strip():
        raise BadDocument("id is empty; omit it to get one derived from title and text")
    _check_text("id", given)
    if len(given.encode()) > LONGEST_ID:
        raise BadDocument(f"id is longer than {LONGEST_ID} bytes")
    if _CONTROL.search(given):
        raise BadDocument("id must not contain line breaks or other control characters")
    if given in (".", ".."):
        raise BadDocument("id must not be . or .., which no URL can name")
    if _PASSAGE_ID.search(given):
        raise BadDocument("id must not end in # and a number, which is reserved for passage ids")
    return given


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadDocument(f"{name} is not valid Unicode (it contains a lone surrogate)") from None


def _check_metadata(metadata: dict[str, Any]) -> None:
    if len(metadata) > MOST_FIELDS:
        raise BadDocument(f"there are more than {MOST_FIELDS} fields besides id, title and text")
    if "" in metadata:
        raise BadDocument("a field has an empty name")
    if ACCESS in metadata:
        check_access(metadata[ACCESS])
    for field_name, value in metadata.items():
        if _is_deeper(value, MOST_LEVELS):
            raise BadDocument(
                f"the field {field_name[:80]!r} has objects or lists nested more than "
                f"{MOST_LEVELS} deep; flatten it"
            )
    try:
        orjson.dumps(metadata, option=_SORTED)
    except (TypeError, ValueError) as error:
        raise BadDocument(f"its other fields are not plain JSON: {error}") from None


def check_access(value: object) -> None:
    """Raise BadDocument unless the value can say who may see a document."""
    named = value if isinstance(value, list) else [value]
    if not named or len(named) > MOST_PRINCIPALS:
        raise BadDocument(
            f"access must name 1 to {MOST_PRINCIPALS} principals; leave it out if everyone who may "
            "use the collection may see the document"
        )
    for name in named:
        if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_PRINCIPAL:
            raise BadDocument(
                "access must be the name of a user or group, or a list of them: texts of 1 to "
                f"{LONGEST_PRINCIPAL} characters"
            )
        if name in EVERYTHING:
            raise BadDocument(f"access must not name {name!r}, which stands for all documents")


def _is_deeper(value: object, levels: int) -> bool:
    """Whether more than `levels` objects and lists are nested in each other."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(value, levels - 1) for value in inner)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "missing"
    return names.get(type(value), "a number")


# Cuts documents into passages.
#
# A document of at most 200 MiniLM word pieces is one passage under its own id. A longer one
# becomes `id#1`, `id#2`, … It is cut between sentences, and each passage begins with the last
# sentence of the previous one if both fit. A sentence that is too long by itself is halved,
# between words if possible.

MOST_PIECES = 200
# A word over 100 characters is a single piece, so text without space needs a second bound.
MOST_CHARACTERS = 4_000

_SPACE = re.compile(r"\s")


def passages_of(document: Document) -> list[PassageRecord]:
    """Return the passages of a document in order. Every non-space character of its text is in one
    of them."""
    spans = cut(document.text)
    whole = len(spans) == 1
    texts = [document.text if whole else document.text[a:b].strip() for a, b in spans]
    return [
        PassageRecord(
            passage=Passage(passage_id, document.title, text, document.metadata),
            document_id=document.id,
            content_hash=document.content_hash,
            part=part,
            parts=len(spans),
        )
        for part, (passage_id, text) in enumerate(
            zip(passage_ids(document.id, len(spans)), texts, strict=True)
        )
    ]


def passage_ids(document_id: str, parts: int) -> list[str]:
    """Return the ids of the passages of a document, in order."""
    return [document_id] if parts == 1 else [f"{document_id}#{n}" for n in range(1, parts + 1)]


def cut(text: str) -> list[tuple[int, int]]:
    """Return spans (start, end) in code points that cover `text`, each within both limits."""
    short = len(text) <= MOST_PIECES and text.isascii()  # which has no more pieces than characters
    if short or (len(text) <= MOST_CHARACTERS and count_pieces(text) <= MOST_PIECES):
        return [(0, len(text))]
    pieces = Pieces(text)
    whole = _whole_rows(text, sentences(text))
    units = [part for start, end in whole for part in _halved(text, pieces, start, end)]

    def fit(first: int, last: int) -> bool:
        return _fits(pieces, units[first][0], units[last][1])

    spans, first = [], 0
    while True:
        last = first
        while last + 1 < len(units) and fit(first, last + 1):
            last += 1
        spans.append((units[first][0], units[last][1]))
        if last + 1 == len(units):
            return spans
        first = last if last > first and fit(last, last + 1) else last + 1


def _whole_rows(text: str, units: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join what is of one row of a table."""
    joined: list[tuple[int, int]] = []
    for start, end in units:
        line = text.rfind("\n", 0, start) + 1
        if joined and line < start and ROW.match(text, line):
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined


def _fits(pieces: Pieces, start: int, end: int) -> bool:
    return end - start <= MOST_CHARACTERS and pieces.count(start, end) <= MOST_PIECES


def _halved(text: str, pieces: Pieces, start: int, end: int) -> list[tuple[int, int]]:
    pending, done = [(start, end)], []
    while pending:
        start, end = pending.pop()
        if _fits(pieces, start, end):
            done.append((start, end))
            continue
        middle = _cut_point(text, start, end)
        pending += [(middle, end), (start, middle)]
    return done


def _cut_point(text: str, start: int, end: int) -> int:
    """Return the place after the first space of the third quarter, else of the second, else the
    middle.
    """
    middle, quarter = (start + end) // 2, (end - start) // 4
    space = _SPACE.search(text, middle, middle + quarter) or _SPACE.search(
        text, start + quarter, middle
    )
    return space.end() if space else middle


# Passages as stores keep them: their fields, and their metadata as tokens.


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
    of_document = {name: fields[name] for name in ("document_id", "content_hash", "part", "parts")}
    return PassageRecord(passage_of(fields), **of_document)


# Metadata filters as keyword tokens `field=value`, the same in every store.
#
# Two values are the same token when they are equal in JSON: 1 and 1.0 are, true and 1 are not. A
# field that holds a list has a token for each element; objects and nulls cannot be filtered on.

LONGEST_FILTER = 200  # bytes; a longer one is stored as its hash
RESTRICTED = ACCESS  # the token of every passage that not everyone may see; no field has such a one


def metadata_tokens(metadata: Mapping[str, Any]) -> list[str]:
    """Return every token of a passage with this metadata."""
    tokens: dict[str, None] = {RESTRICTED: None} if ACCESS in metadata else {}
    for name, value in metadata.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str | int | float):
                tokens[_token(name, item)] = None
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
