"""Read the teacher's replies. Each reader raises UnusableReply with one of a few reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.strategies.reading.salvage import (
    json_values,
    member,
    one_line,
    plain_key,
    unwrap,
)
from service.workshop.synthesis.contract import UnusableReply


def json_object(text: str, *keys: str) -> dict[str, Any]:
    """Return the values of the first JSON object in `text` that has all `keys`, by these names.

    Other text is ignored, as are case, spaces and underscores in keys.
    """
    objects = [value for value in json_values(unwrap(text)) if isinstance(value, dict)]
    if not objects:
        raise UnusableReply("not JSON")
    for value in objects:
        found = {key: member(value, {plain_key(key)}) for key in keys}
        if None not in found.values():
            return found
    raise UnusableReply("keys missing")


def text_in(value: Mapping[str, Any], key: str) -> str:
    """Return a string or a number as one line of text. Raises UnusableReply for other values."""
    text = value[key]
    if isinstance(text, int | float) and not isinstance(text, bool):
        text = str(text)
    if not isinstance(text, str):
        raise UnusableReply(f"`{key}` is no text")
    if not (line := one_line(text)):
        raise UnusableReply(f"`{key}` is empty")
    return line
