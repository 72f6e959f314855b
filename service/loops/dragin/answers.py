"""The answer inside a finished chain of thought (methods §3.2, failures; §3.6). Pure."""

from __future__ import annotations

from typing import Final

PHRASE: Final = "the answer is"
CONCLUSION: Final = "So the answer is"
ANSWER_TOKENS: Final = 20
_OVERRUN: Final = ("Question:", "#10000000", "Note:", "\n")


def cut_overrun(text: str) -> str:
    """The text up to where the model went on after its answer: another question, a note, a line."""
    text = text.strip()
    ends = [place for mark in _OVERRUN if (place := text.find(mark)) > 0]
    return text[: min(ends, default=len(text))].rstrip()


def is_answered(text: str) -> bool:
    return PHRASE in text


def read_answer(text: str) -> str | None:
    """What stands behind the first "the answer is", less a final full stop; None: nothing does."""
    _, found, rest = text.partition(PHRASE)
    return (rest.strip().removesuffix(".").rstrip() or None) if found else None
