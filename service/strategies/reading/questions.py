"""Readers of the Revelator's and the judge's output (METHODS.md §1.3): the parts of a question, the
next question or that none is needed, a route, a verdict, and numbers of documents.

An engine that can be held to labels or to a schema writes nothing else. Of other text the first
clear statement counts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from service.core.domain import RouteName
from service.strategies.reading.answers import refuses
from service.strategies.reading.text import (
    field,
    has_word,
    json_values,
    member,
    one_line,
    unfence,
    unwrap,
    without_lead,
)

# ---- the parts of a question

PARTS_KEYS = frozenset(["decomposition", "questions", "subquestions"])
QUESTION_KEYS = frozenset(["question", "query", "subquestion", "nextquestion", "output"])
_ITEM = re.compile(
    r"\A\s*(?:\*\*)?(?:\(?\d{1,2}[.):：、）]|[-–*+•]\s|(?:sub-?)?question\s*\d+\s*[.:：)])"
    r"(?:\*\*)?\s*(\S.*)",
    re.IGNORECASE,
)
_SENTENCE_GAP = re.compile(r"(?<=[?？])[ \t]*(?=[^\s\"'”’)?？])")


class Decomposed(NamedTuple):
    """A decomposition: the questions in order, without repeats, and the reasoning if given.
    `repaired`: some of its parts were not questions."""

    thought: str | None
    questions: tuple[str, ...]
    repaired: bool = False


def parse_decomposition(text: str) -> Decomposed | None:
    """Read DECOMPOSE's JSON (keys `thought`, `decomposition`), or lines that ask.

    JSON may be anywhere, but whole. An object without the key is no decomposition (METHODS.md §1.2:
    retry), whatever else it contains.
    """
    text = unwrap(text)
    values = list(json_values(text))
    for value in values:
        thought, parts = None, value
        if isinstance(value, dict):
            thought, parts = member(value, {"thought"}), member(value, PARTS_KEYS)
        if isinstance(parts, list) and (questions := _questions(parts)):
            reasoning = one_line(thought) if isinstance(thought, str) else ""
            lost = any(not isinstance(part, str) or not has_word(part) for part in parts)
            return Decomposed(reasoning or None, questions, lost)
    if values or text.startswith(("{", "[")):
        return None
    bare = unfence(text).replace("**", "")
    lines = [_ITEM.sub(r"\1", line).strip() for line in bare.splitlines()]
    asking = [line for line in lines if line.endswith(("?", "？"))]
    questions = _questions([sentence for line in asking for sentence in _SENTENCE_GAP.split(line)])
    return Decomposed(None, questions) if questions else None


def _questions(parts: list[Any]) -> tuple[str, ...]:
    """The distinct questions among `parts`, without the numbers of a list."""
    lines = [one_line(part) for part in parts if isinstance(part, str) and has_word(part)]
    numbered = [match[1] for line in lines if (match := _ITEM.match(line))]
    lines = numbered if len(numbered) == len(lines) > 1 else lines
    distinct: dict[str, str] = {}
    for line in lines:
        distinct.setdefault(line.casefold().rstrip("?.!？ "), line)
    return tuple(distinct.values())


# ---- the next question

_QUESTION_LABEL = re.compile(
    r"\s*(?:\d{1,2}[.)]\s+|[-–*•>#]+\s+"
    r"|(?:the )?(?:next |new |refined |follow-?up |sub-?\s?|seed )*"
    r"(?:question|query|output|answer)(?: to ask)?\s*-?\d*\s*(?:(?:is\s*)?[:：]|is (?=[\"“])))\s*",
    re.IGNORECASE,
)
_ECHO = re.compile(r"\W*(?:question|thought)\s*:.*\n", re.IGNORECASE)  # the prompt's fields
_ASKS = re.compile(
    r"(?:who|whom|whose|what|which|when|where|why|how|in|on|at|of|for|from|to|by|is|are|was|were|do"
    r"|does|did|can|could|has|have|had|will|would|name|list|tell|find|give|identify|state)\b",
    re.IGNORECASE,
)
_ASKED = re.compile(r"[?？](?:\s?[\"'”’»]){0,2}(?=\s*$|\s+[^a-z\s]|\s*[(*])")
_NOTHING = frozenset(["yes", "no", "none", "nothing", "null", "na", "done", "stop", "unknown"])
# "I would search the web." is no query, nor is "I'm sorry, …".
_REFUSAL = re.compile(
    r"(?:(?:i|we)(?:['’](?:ll|d|m|ve))?|let (?:me|us)|let['’]s)\s(?:\w+\s){0,3}"
    r"(?-i:search|searching|look|looking|browse|google|consult|check|sorry)\b"
    r"|sorry|i can(?:not|['’]t)|i don['’]t|i do not|unable to|as an ai"
    r"|(?:there (?:is|are) )?no (?:more|further|next)\b",
    re.IGNORECASE,
)


def parse_question(text: str) -> str | None:
    """Read REFINE's output: the next question alone, on one line (an atomic question is echoed).

    Of several lines the first that asks something counts; text after the question is dropped.
    """
    text = unwrap(text)
    wrapped = field(unfence(text), QUESTION_KEYS)
    text = unfence(text) if wrapped is None else wrapped
    if _ECHO.match(text):
        text = text.partition("\nOutput:")[2] or text
    lines = [line for line in map(_question_line, text.splitlines()) if line]
    asking = [line for line in lines if line.endswith(("?", "？", '?"'))]
    return next(iter(asking or lines), None)


def _question_line(line: str) -> str:
    """Return the question in `line`, or ""."""
    line = without_lead(line.replace("**", ""), _QUESTION_LABEL)
    asked = _ASKED.search(line)
    line = one_line(line[: asked.end()] if asked else line)
    bare = re.sub(r"\W", "", line).casefold()
    empty = not bare or bare in _NOTHING or line.endswith((":", "："))
    declined = not asked and not _ASKS.match(line) and refuses(line)
    return "" if empty or declined or _REFUSAL.match(line) else line


# ---- labels: ROUTE, REL and ENDING

_LONGEST: Final = 2_000  # characters that are read
# "so it is", "Answer:": the text after it takes precedence over the text before it.
_CONCLUSION = re.compile(
    r"\b(?:answer|label|verdict|conclusion|route|class|output|relevant|ending|done)\b\W{0,3}"
    r"(?:is\b|[:=])|\b(?:so|therefore|thus|hence)\b"
)
_CLAUSE = re.compile(r"[\s:,\"'{(]*[^.\n;!?]{0,300}")
_NEGATION = re.compile(
    r"(?:\b(?:not|non|nicht|pas|never|neither|nor|cannot|no|rather than|instead of)|n't)\W*"
    r"(?:(?:a|an|the|really|very|yet|quite|be|is|one of)\b\W*){0,3}\Z"
)
_NEXT_EXAMPLE = re.compile(r"\n[^\S\n]*(?:query|question|doc(?:ument)?)\s*+\d*\s*:")
_ROUTES: Final[Mapping[str, RouteName]] = {
    "straightforward": "direct", "direct": "direct", "single": "single", "compound": "compound",
    "complex": "complex",
}  # fmt: skip
_ROUTE = re.compile(rf"\b(?:{'|'.join(_ROUTES)})\b")
_LETTERS: Final[Mapping[str, RouteName]] = {
    "a": "direct", "b": "single", "c": "complex", "d": "compound",
}  # fmt: skip
_LETTER = re.compile(r"\W*([a-d])\W*")
_VERDICTS: Final = {
    "true": True, "yes": True, "relevant": True, "sufficient": True, "complete": True,
    "enough": True, "false": False, "no": False, "irrelevant": False, "insufficient": False,
    "incomplete": False,
}  # fmt: skip
_VERDICT = re.compile(rf"\b(?:{'|'.join(_VERDICTS)})\b")
_DIGIT = re.compile(r"\W*([01])\W*")
_MENU = re.compile(r"\b(?:true or false|yes or no)\?")


def parse_route(text: str) -> RouteName | None:
    """Read ROUTE's output: the label of the stated conclusion, or else the first one that is not
    negated; or a letter of METHODS.md §5. All labels without a conclusion repeat the prompt and are
    not a choice.
    """
    for clause in _clauses(text):
        if letter := _LETTER.fullmatch(clause):
            return _LETTERS[letter[1]]
        named = [found[0] for found in _ROUTE.finditer(clause) if not _negated(clause, found)]
        if named and len(set(named)) < len(set(_ROUTES.values())):
            return _ROUTES[named[0]]
    return None


# a question reads the same few words again and again
@lru_cache(maxsize=64)
def parse_verdict(text: str) -> bool | None:
    """Read REL's true or false, or ENDING's yes, no, 1 or 0: the stated conclusion, or else the
    first verdict. A negation reverses it ("not relevant")."""
    for clause in _clauses(text):
        if digit := _DIGIT.fullmatch(clause):
            return digit[1] == "1"
        if found := _VERDICT.search(clause):
            return _VERDICTS[found[0]] ^ _negated(clause, found)
    return None


def _clauses(text: str) -> Iterator[str]:
    """Yield the clauses that state a conclusion, the last one first, then the whole text: without
    mark-up, with folded case, up to where the model goes on with another example."""
    folded = unicodedata.normalize("NFKC", unwrap(text)[:_LONGEST]).casefold()
    folded = re.sub("[‐‑‒–—−_]", "-", folded.replace("’", "'"))
    folded = re.sub(r"[*~#`]+", " ", re.sub(r"```[a-z]*", "\n", folded)).strip()
    folded = _MENU.sub("", _NEXT_EXAMPLE.split(folded)[0])
    for marker in reversed(list(_CONCLUSION.finditer(folded))):
        if clause := _CLAUSE.match(folded, marker.end()):
            yield clause[0]
    yield folded


def _negated(text: str, label: re.Match[str]) -> bool:
    return _NEGATION.search(text, max(0, label.start() - 60), label.start()) is not None


# ---- the next question, or that the answers are enough


class Ahead(NamedTuple):
    """Whether the answers found are enough, and the next question, None if it is not known."""

    enough: bool
    question: str | None = None


def parse_ahead(text: str) -> Ahead | None:
    """Read NEXT's JSON (keys `enough`, `question`), or text: a question, or a verdict."""
    text = unwrap(text)
    value = next(json_values(text), None)
    if value is None and text.startswith("{"):
        return None
    done = member(value, {"enough"}) if isinstance(value, dict) else None
    question = parse_question(text)
    if done is not None:
        enough = str(done).casefold() == "true"
        return Ahead(enough, None if enough else question)
    verdict = parse_verdict(text)
    if verdict is None or (question or "").endswith(("?", "？")):
        return Ahead(False, question) if question else None
    return Ahead(verdict)


# ---- numbers of documents

_NUMBERS_ALONE = re.compile(r"[\W\d_]*(?:(?:docs?|documents?|numbers?|and)[\W\d_]*)*", re.I)
_NONE_OF_THEM = re.compile(r"\W*(?:\w+\W+){0,3}(?:none|no document|not one)\b", re.I)


def parse_numbers(text: str, most: int) -> frozenset[int] | None:
    """Read SELECT's numbers of documents, from 1 to `most`: those of the last line that has nothing
    else. None if there is no such line and it does not say "none"."""
    for line in reversed(text.splitlines()):
        numbers = [int(number) for number in re.findall(r"\d{1,4}", line)]
        if _NUMBERS_ALONE.fullmatch(line) and (numbers or "[]" in line):
            return frozenset(number for number in numbers if 1 <= number <= most)
    return frozenset() if _NONE_OF_THEM.match(text) else None


def numbers_up_to(most: int) -> dict[str, Any]:
    """Return the JSON schema of SELECT's reply."""
    numbers = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": most}}
    return {
        "type": "object", "properties": {"numbers": numbers}, "required": ["numbers"],
        "additionalProperties": False,
    }  # fmt: skip
