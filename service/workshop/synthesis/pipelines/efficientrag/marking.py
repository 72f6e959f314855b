"""Steps 2 and 3 (METHODS.md §4.5): the words of a passage that serve a sub-question."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from service.encoders.words import words
from service.workshop.encoders.marks import Mark, align
from service.workshop.synthesis.contract import Ask, BadReply, Dropped, Steps, ask
from service.workshop.synthesis.pipelines.efficientrag.decomposing import (
    PROMPTS,
    SubQuestion,
    shown,
)
from service.workshop.synthesis.pipelines.efficientrag.questions import Style
from service.workshop.synthesis.prompts import field
from service.workshop.synthesis.replies import json_object

# HotpotQA has none of its own and takes those of 2Wiki (METHODS.md §4.4 #7).
TEMPLATES: Final[dict[Style, str]] = {
    "musique": "label_musique", "2wiki": "label_2wiki", "hotpotqa": "label_2wiki",
}  # fmt: skip


def mark(part: SubQuestion, style: Style, lost: Counter[str]) -> Steps[list[Mark]]:
    """A label per word of the passage's text form; none is marked where the teacher fails."""
    text = shown(part.passage)
    prompt = PROMPTS.messages(
        TEMPLATES[style],
        question=field(part.text),
        document=field(text),
        answer=field(part.answer),
    )
    try:
        extracted = yield from ask(Ask("label", prompt), read_extracted)
    except Dropped as drop:
        lost[drop.reason] += 1
        extracted = []
    marks = align([word.text for word in words(text)], extracted)
    lost["label: word not in the passage"] += len(extracted) - sum(marks)
    return marks


def read_extracted(text: str) -> list[str]:
    """The words under the key that counts, given as a text or as a list."""
    return words_of(json_object(text, "extracted_words")["extracted_words"])


def words_of(value: Any) -> list[str]:
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if not isinstance(value, str):
        raise BadReply("no words")
    found = [word.text for word in words(value)]
    if not found:
        raise BadReply("no words")
    return found
