"""Texts of others, made fit to be printed on a terminal or in a message."""

from __future__ import annotations

import re

# All control characters except tab and line feed.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Remove control characters, which a terminal would execute, from the text of a passage or a
    model."""
    return _CONTROLS.sub("", text)


def cut(text: str, most: int) -> str:
    """Return at most `most` characters of the text, the last of which is an ellipsis if it is
    longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
