"""REFINE of a bridge by substitution (METHODS.md §1.3): the answer to an earlier sub-question
replaces its description in the question.

"Of which nationality is the person who directed Land of Peace?" becomes "Of which nationality is
Kamal El Sheikh?". A small model changes the question if it does not know the wording ("Which person
directed Kamal El Sheikh?"). Anything but a plain description of one thing is left to the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from service.prompts.templates import Pair
from service.strategies.revelator.clauses import LINKS, last_clause
from service.strategies.revelator.comparison import shared_name
from service.text.words import content_words, letter_words

LONGEST: Final = 6  # words of an answer that is a name
_STEM: Final = 4  # letters that "directed" and "director" share
_PLAIN = rf"(?!{LINKS}\b)[a-z][a-z-]* "  # a word of a description
_ROLE = rf"the (?:{_PLAIN}){{1,3}}of "  # "the director of "
_SORT = rf"(?:(?:the|an?) )?(?:{_PLAIN}){{0,2}}"  # "the film "
_OF = re.compile(rf"\b{_ROLE}{_SORT}\Z")
_WHO = re.compile(
    rf"\bthe (?:{_PLAIN}){{1,2}}"
    rf"(?:(?:who|that) (?:{_PLAIN}){{1,3}}(?:(?:in|for|by|at) )?|{_PLAIN}by ){_SORT}\Z"
)
_SORT_OF = re.compile(rf"(?:\bthe (?:{_PLAIN}){{1,2}})?\Z")
_OWN = re.compile(r" ?['’]s? (?P<role>[a-z]+)(?![\w-]| of\b)")
_OWNED = re.compile(r"(?:['’]s|(?<=s)['’])(?: [a-z][a-z-]*)+\Z")
_ADDED = re.compile(r"[!?](?=[ '’?])| ?\([^()]*\)")  # "Help! (1965 film)"
_ASKING = r"\W*(?:who|what|which|where|when)(?: (?:is|are|was|were))? (?:the name of )?"
_ASKS = re.compile(rf"{_ASKING}\Z", re.IGNORECASE)
# "What is the place of birth of "
_ASKS_ROLE = re.compile(rf"{_ASKING}{_ROLE}(?:{_PLAIN}of )?\Z", re.IGNORECASE)
_WH = r"\b(?:who|whom|whose|what|which|when|where|why|how)\b"
_OPENS = re.compile(rf"\W*(?:(?:in|at|on|of|for|from|to|by) )?{_WH}", re.IGNORECASE)


def substitute_answers(question: str, pairs: Sequence[Pair]) -> str | None:
    """Return the question with the answers in place of their descriptions, if exactly one thing
    about one name is left to ask; None otherwise.
    """
    found = [(pair.question, pair.answer) for pair in pairs if pair.answer]
    if not found or not _OPENS.match(question):
        return None
    whole = False
    for asked, answer in found:
        clause = last_clause(question)
        whole = clause is not None and clause.question == asked and _is_name(answer)
        if clause and whole:
            question = question[: clause.start] + answer + question[clause.end :]
        elif replaced := _replaced(question, asked, answer):
            question = replaced
        else:
            return None
    return question if _asks_once(question, found[-1][1], names=whole) else None


def bridge_answer(question: str, pairs: Sequence[Pair]) -> str | None:
    """Return the answer to a question whose bridged form was the last one asked."""
    if len(pairs) < 2 or pairs[-1].question != substitute_answers(question, pairs[:-1]):
        return None
    return pairs[-1].answer


def _replaced(question: str, asked: str, answer: str) -> str | None:
    """Return the question with `answer` in place of the description that contains the name in
    `asked`.
    """
    span = shared_name(question, asked)
    if span is None or not _is_name(answer) or answer in question:
        return None
    left, right = question[: span[0]], question[_end_of_name(question, *span) :]
    before, own = _OF.search(left) or _WHO.search(left), _OWN.match(right)
    if own and _is_asked(own["role"], asked) and not (before and _is_asked(before[0], asked)):
        sort = _SORT_OF.search(left)
        return left[: sort.start() if sort else None] + answer + right[own.end() :]
    # With "'s" after the name: "the spouse of X's director", or "the director of X's birth date"?
    plain = before is not None and (own is None or _is_asked(before[0], asked))
    return left[: before.start()] + answer + right if before and plain else None


def _is_name(answer: str) -> bool:
    return answer[0].isupper() and len(answer.split()) <= LONGEST


def _end_of_name(question: str, start: int, end: int) -> int:
    """Return the end of a name, without "'s father", which both questions may have, and with "(1950
    film)".
    """
    if owned := _OWNED.search(question[start:end]):
        return start + owned.start()
    added = _ADDED.match(question, end)
    return added.end() if added else end


def _is_asked(described: str, asked: str) -> bool:
    stems = {word[:_STEM] for word in letter_words(asked.lower())}
    words = letter_words(described.lower())
    return any(word[:_STEM] in stems for word in words if len(word) >= _STEM)


def _asks_once(question: str, answer: str, *, names: bool) -> bool:
    """Whether exactly one thing about the answer is asked: no other name is in the question, unless
    it may have `names`, and the answer does not describe something else ("the wife of A", "A's
    father").
    """
    left, _, right = question.partition(answer)
    rest = f"{left} {right}"
    other = not names and any(map(str.isupper, rest[1:]))
    if other or len(re.findall(_WH, rest, re.IGNORECASE)) > 1 or not content_words(rest):
        return False
    if _OWN.match(right):
        return _ASKS.match(left) is not None
    if left.endswith("of ") and (not names or _OF.search(left)):
        return _ASKS_ROLE.match(left) is not None and not letter_words(right)
    return names or (left.count(" the ") < 2 and not _OF.search(left) and not _WHO.search(left))
