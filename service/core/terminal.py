"""Texts of others, made safe to be printed on a terminal."""

from __future__ import annotations

import re

# All control characters except tab and line feed.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Remove control characters, which a terminal would execute, from the text of a passage or a
    model."""
    return _CONTROLS.sub("", text)
