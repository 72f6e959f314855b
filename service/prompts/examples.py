"""Whether a reply repeats an example of its own prompt (pure).

Small models copy the examples of a prompt. Text of the template itself, which neither the question
nor the filled-in passages and sub-answers contain, is not their answer, query or sub-question.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from service.text.grounding import bears, is_yes_no
from service.text.words import STOP_WORDS, letter_words

KIN: Final = 5  # letters that two forms of a name share ("Austria", "Austrian")
_NAME = re.compile(r"(?<=[^\W\d_A-Z],\s)[A-Z][^\W\d_]+|(?<=[^\W\d_A-Z]\s)[A-Z][^\W\d_]+")
_RUN = re.compile(r"[^\W\d_a-z][^\W\d_]*(?:[ -][^\W\d_a-z][^\W\d_]*)*")


def is_example(reply: str, examples: str, shown: str) -> bool:
    """Return whether `reply` occurs in `examples` and not in `shown`, or contains a name that does.
    Yes and no are never examples, because every prompt contains them."""
    if is_yes_no(reply):
        return False
    whole = bears(examples, reply) and not bears(shown, reply)
    return whole or _borrows(reply, examples, shown)


def _borrows(reply: str, examples: str, shown: str) -> bool:
    """Whether a name in the reply has a word of the examples' names and none that is known: "the
    River Thames" is not borrowed if the Thames was shown.
    """
    names = _names(examples)
    if names.isdisjoint(word.casefold() for word in letter_words(reply)):
        return False
    known = {word[:KIN] for word in letter_words(shown.casefold())}
    for run in _RUN.findall(reply):
        words = [word.casefold() for word in letter_words(run)]
        words = [word for word in words if word not in STOP_WORDS]
        strange = known.isdisjoint(word[:KIN] for word in words) and not bears(shown, run)
        if strange and not names.isdisjoint(words):
            return True
    return False


@lru_cache(maxsize=256)
def _names(examples: str) -> frozenset[str]:
    """Return the words with a capital inside a sentence that are never written without it."""
    common = {word for word in letter_words(examples) if word[0].islower()}
    return frozenset(name.casefold() for name in _NAME.findall(examples)) - common
