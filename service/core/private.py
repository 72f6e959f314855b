"""Texts of the question under way, which no log line and no error may repeat.

A server that refuses a call often says what it was sent. What a question sends is held here, per
task, and taken out of whatever is said meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

WITHHELD: Final = "[withheld]"
LEAST: Final = 16  # letters in a row that make a repetition of a long text

_held: ContextVar[Mapping[str, Sequence[str]]] = ContextVar(
    "private_texts", default=MappingProxyType({})
)


def hold(kind: str, *texts: str) -> None:
    """Hold these texts in place of the earlier ones of the same kind, in this task and those that
    it starts."""
    _held.set({**_held.get(), kind: texts})


def withhold(text: str) -> str:
    """Return `text` without what it repeats of the texts that are held: each of them as a whole,
    and every run of at least `LEAST` letters from one."""
    held = [each for texts in _held.get().values() for each in texts if each.strip()]
    for whole in held:
        if whole in text:
            text = text.replace(whole, WITHHELD)
    return _without_runs(text, "\n".join(held)) if held and len(text) >= LEAST else text


def _without_runs(text: str, source: str) -> str:
    kept: list[str] = []
    place = 0
    while place < len(text):
        end = place + LEAST
        if end > len(text) or text[place:end] not in source:
            kept.append(text[place])
            place += 1
            continue
        while end < len(text) and text[place : end + 1] in source:
            end += 1
        kept.append(WITHHELD)
        place = end
    return "".join(kept)
