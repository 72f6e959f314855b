"""Resolves the pronouns of sub-questions (METHODS.md §1.3).

Each sub-question is searched and read alone, and "How strong is it?" finds nothing. A pronoun is
replaced only if an earlier sub-question leaves one choice; no model is asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from service.prompts.templates import Pair
from service.text.words import STOP_WORDS, spelt_words

_PRONOUN = re.compile(r"\b(?:its?|they|them|their|he|him|his|she|her)\b", re.IGNORECASE)
_OF_THINGS: Final = frozenset(["it", "its", "they", "them", "their"])
_OF_PEOPLE: Final = frozenset(["he", "him", "his", "she", "her", "they", "them", "their"])
_OWNERS: Final = frozenset(["its", "their", "his"])
# In "How long does it take to …?" and "Is it true that …?" the pronoun refers to nothing.
_EMPTY = re.compile(
    r"(?<=time is it)|\s+(?:takes?|took|true|possible|likely|necessary|allowed|important)\b", re.I
)
_DETERMINER = re.compile(r"\b(?:the|an?|our|my|your|this|that)\s", re.IGNORECASE)
_NAME = re.compile(
    r"(?<=[\w,] )(?:the )?[A-Z0-9][\w'’&.-]*(?: (?:(?:of|the|in|de|von|for) )*[A-Z0-9][\w'’&.-]*)*"
)
_POSSESSIVE = re.compile(r"['’]s?\Z")
_DESCRIBED = re.compile(
    r"\W*(?P<asked>what|which|who)(?:['’]s| is| are| was| were) "
    r"(?P<thing>(?:the|an?|our|my|your) .+?)\W*\Z",
    re.IGNORECASE,
)
_DOING = re.compile(r"\W*who (?P<doing>(?!(?:is|are|was|were)\b).+?)\W*\Z", re.IGNORECASE)


def resolve_pronouns(question: str, earlier: Sequence[Pair]) -> str:
    """Return a sub-question with its first pronoun replaced by the subject of the newest earlier
    one that has one: its answer, if known, or its own words.

    It is returned unchanged if it names something before the pronoun, or if there is no such
    subject.
    """
    pronoun = _PRONOUN.search(question)
    if pronoun is None or _EMPTY.match(question, pronoun.end()):
        return question
    before, after = question[: pronoun.start()], question[pronoun.end() :]
    if _NAME.search(before) or _DETERMINER.search(before):
        return question
    word = pronoun[0].lower()
    thing = next(filter(None, (_thing(pair, word) for pair in reversed(earlier))), None)
    if thing is None:
        return question
    owns = word in _OWNERS or (word == "her" and re.match(r" \w", after) is not None)
    return f"{before}{thing}'s{after}" if owns else f"{before}{thing}{after}"


def _thing(pair: Pair, pronoun: str) -> str | None:
    """Return what `pronoun` refers to after a question: the thing it asks for, if the pronoun
    agrees with that, else the only name in it.
    """
    described, doing = _DESCRIBED.match(pair.question), _DOING.match(pair.question)
    asked, people = None, True
    if doing:
        asked = f"the person who {doing['doing']}"
    elif described:
        asked, people = described["thing"], described["asked"].lower() == "who"
    if asked and pronoun in (_OF_PEOPLE if people else _OF_THINGS) and not _is_open(asked):
        return pair.answer or asked
    names = {_POSSESSIVE.sub("", name) for name in _NAME.findall(pair.question)}
    return names.pop() if len(names) == 1 else None


def _is_open(described: str) -> bool:
    """Whether a description is incomplete by itself ("the tower made of")."""
    return spelt_words(described)[-1].lower() in STOP_WORDS
