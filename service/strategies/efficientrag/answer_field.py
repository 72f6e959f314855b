"""The reader's JSON, `{"answer": "…"}`, whole or while it is being written; no I/O."""

from __future__ import annotations

import json
import re
from typing import Final

from service.strategies.revelator.parsing.salvage import (
    has_word,
    json_values,
    member,
    one_line,
    unwrap,
)

KEY: Final = "answer"
SCHEMA: Final = {
    "type": "object",
    "properties": {KEY: {"type": "string"}},
    "required": [KEY],
    "additionalProperties": False,
}
_OPENING = re.compile(rf'\A\s*(?:```(?:json)?\s*)?\{{\s*"{KEY}"\s*:\s*"')
_HALF_PAIR = re.compile("[\ud800-\udfff]")  # of an escape whose other half is to come
_WHOLE = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')


class AnswerField:
    """Tells the answer from the JSON around it while that is written.

    White space is held back until a word follows, so that the pieces joined are the answer as
    `answer_in` reads it, where the JSON is plain.
    """

    def __init__(self) -> None:
        self.text = ""
        self.shown = ""

    def restart(self) -> bool:
        """All that came is void; whether some of it was shown."""
        shown, self.text, self.shown = self.shown, "", ""
        return bool(shown)

    def feed(self, text: str) -> str:
        """Take the next piece of the output, return what can be shown of the answer."""
        self.text += text
        opening = _OPENING.match(self.text)
        if opening is None:
            return ""
        whole = _WHOLE.match(self.text, opening.end())
        written = json.loads(f'"{whole[0]}"', strict=False) if whole else ""
        fresh = str(written).strip()[len(self.shown) :]
        if _HALF_PAIR.search(fresh):
            return ""
        self.shown += fresh
        return fresh


def answer_in(text: str) -> str | None:
    """The answer in an output that has the key; None where there is none, or it is empty."""
    for value in json_values(unwrap(text)):
        found = member(value, {KEY}) if isinstance(value, dict) else None
        if isinstance(found, list):
            found = ", ".join(str(item) for item in found)
        if isinstance(found, bool):
            found = "yes" if found else "no"
        if isinstance(found, str | int | float) and has_word(str(found)):
            return one_line(str(found))
    return None
