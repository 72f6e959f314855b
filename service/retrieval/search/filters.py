"""Metadata filters as keyword tokens `field=value`, the same in every store.

Two values are the same token when they are equal in JSON: 1 and 1.0 are, true and 1 are not. A
field that holds a list has a token for each element; objects and nulls cannot be filtered on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from service.retrieval.base import Filter

LONGEST_TOKEN = 200  # bytes; a longer one is stored as its hash


def metadata_tokens(metadata: Mapping[str, Any]) -> list[str]:
    """Return every token of a passage with this metadata."""
    tokens: dict[str, None] = {}
    for field, value in metadata.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str | int | float):
                tokens[_token(field, item)] = None
    return list(tokens)


def filter_tokens(filter: Filter) -> list[list[str]]:
    """Return, for each field of the filter, the tokens of which a passage must have one."""
    return [[_token(field, value) for value in values] for field, values in filter.items()]


def unknown_fields(filter: Filter, known: Iterable[str]) -> list[str]:
    return sorted(set(filter) - set(known))


def _token(field: str, value: str | int | float) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    token = f"{field}={_json(value)}"
    if len(token.encode()) <= LONGEST_TOKEN:
        return token
    return "#" + hashlib.sha256(token.encode()).hexdigest()


def _json(value: str | int | float) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # of any size
    return orjson.dumps(value).decode()
