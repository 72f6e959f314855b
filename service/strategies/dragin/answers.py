"""The answer inside a finished chain of thought (METHODS.md §3.2, failures; METHODS.md §3.6)."""

from __future__ import annotations

import re
from typing import Final

from service.prompts.templates import NO_ANSWER

PHRASE: Final = "the answer is"
CONCLUSION: Final = "So the answer is"
ANSWER_TOKENS: Final = 20
_OVERRUN: Final = ("Question:", "#10000000", "Note:", "\n")
_MARKUP = re.compile(r"(\*{1,3}|_{1,3}|`+)(?=\S)(.+?)(?<=\S)\1")


def cut_overrun(text: str) -> str:
    """The text up to where the model went on after its answer: another question, a note, a line."""
    text = text.strip()
    ends = [place for mark in _OVERRUN if (place := text.find(mark)) > 0]
    return text[: min(ends, default=len(text))].rstrip()


def is_answered(text: str) -> bool:
    return PHRASE in text


def read_answer(text: str) -> str | None:
    """What stands behind the first "the answer is", less a colon before it, a final full stop and
    the Markdown around it; None: nothing does."""
    _, found, rest = text.partition(PHRASE)
    rest = _bare(_bare(rest).lstrip(":"))
    return (rest or None) if found else None


def declines(text: str) -> bool:
    """Whether the text concludes that no answer was found, in the words of the prompts."""
    answer = read_answer(cut_overrun(text)) or ""
    return answer.casefold().startswith(NO_ANSWER)


def _bare(text: str) -> str:
    """Without the final full stop, inside or outside of mark-up that is around all of it."""
    text = text.strip().removesuffix(".").rstrip()
    while (wrapped := _MARKUP.fullmatch(text)) and wrapped[1] not in wrapped[2]:
        text = wrapped[2].removesuffix(".").rstrip()
    return text
