"""A passage as stores keep it: its id, its fields, and its metadata as tokens."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

import orjson

from service.core.domain import Passage
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
