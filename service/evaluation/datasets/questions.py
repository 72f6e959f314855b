"""A question with gold answers, and the row format to which all published formats are converted.

A row is an object with `question`, and with `answer` or `answers` (text, number, a boolean for yes
or no, or a list of alternatives) and optionally `answer_aliases`. A compound gold answer is given
as `parts` (each a text or a list of aliases), or as an `answer` whose parts are joined by ` && `.
With `choices`, an answer that is one of their letters is replaced by the text of that choice.
Optional fields are `id`, `route`, `supporting_passage_ids`, `supporting_titles`, and `answerable`
(false: there is no answer). Other fields are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from service.answer.request import LONGEST_QUESTION
from service.core.domain import RouteName

JOINT: Final = " && "
ROUTES: Final[Mapping[str, RouteName]] = {name: name for name in get_args(RouteName)}


@dataclass(frozen=True, slots=True)
class GoldQuestion:
    """A question with its gold answers.

    Each of the `answers` is correct as a whole; if there are none, abstaining is correct. `parts`
    are the aliases of each part of a compound answer. `supporting` are the ids of the gold
    passages; `supporting_titles` are the case-folded titles of gold articles, where the dataset
    names articles.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...] = ()
    route: RouteName | None = None
    supporting: frozenset[str] = frozenset()
    supporting_titles: frozenset[str] = frozenset()

    @property
    def gold_passages(self) -> int:
        """The number of gold passages."""
        return len(self.supporting) + len(self.supporting_titles)

    @property
    def golds(self) -> tuple[str, ...]:
        """Return every text that is a correct answer or a part of one."""
        return tuple(alias for part in self.parts for alias in part) or self.answers


def read_question(
    row: Mapping[str, Any], default_id: str, *, may_abstain: bool = False
) -> GoldQuestion:
    """Read one row.

    With `may_abstain`, a question that is not `answerable` has no answers. Raises ValueError with
    the invalid field and the reason.
    """
    answerable = not (may_abstain and row.get("answerable") is False)
    answers = _answers(row) if answerable else ()
    parts = _parts(row, answers) if answerable else ()
    if parts:
        answers = (JOINT.join(part[0] for part in parts), *answers)
    if answerable and not answers:
        raise ValueError("has no answer: add `answer`, `answers` or `parts`")
    return GoldQuestion(
        id=_id(row, default_id),
        question=_question(row),
        answers=tuple(dict.fromkeys(answers)),
        parts=parts,
        route=_route(row),
        supporting=frozenset(_texts(row, "supporting_passage_ids")),
        supporting_titles=frozenset(map(str.casefold, _texts(row, "supporting_titles"))),
    )


def _question(row: Mapping[str, Any]) -> str:
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError("`question` is missing, empty or not a string")
    if len(question) > LONGEST_QUESTION:
        raise ValueError(f"`question` has more than {LONGEST_QUESTION:,} characters")
    return _encodable(question, "question")


def _id(row: Mapping[str, Any], default: str) -> str:
    given = row.get("id")
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
        raise ValueError("`id` is neither a string nor an integer")
    return str(given)


def _route(row: Mapping[str, Any]) -> RouteName | None:
    route = row.get("route")
    if route is None:
        return None
    if not isinstance(route, str) or route not in ROUTES:
        raise ValueError(f"`route` is {route!r}, not one of {', '.join(ROUTES)}")
    return ROUTES[route]


def _answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    answers = [*_texts(row, "answer"), *_texts(row, "answers"), *_texts(row, "answer_aliases")]
    choices = row.get("choices")
    if isinstance(choices, dict):
        answers = [str(choices.get(answer, answer)) for answer in answers]
    return tuple(answers)


def _parts(row: Mapping[str, Any], answers: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    parts = row.get("parts")
    if parts is None:
        joined = next((answer for answer in answers if JOINT in answer), "")
        return tuple((part.strip(),) for part in joined.split(JOINT) if part.strip())
    if not isinstance(parts, list) or not parts:
        raise ValueError("`parts` is not a list of answers")
    read = tuple(tuple(_texts({"parts": part}, "parts")) for part in parts)
    if not all(read):
        raise ValueError("`parts` has a part without an answer")
    return read


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    """Return a field as texts: it is one value or a list of values, and booleans become yes and
    no."""
    value = row.get(name)
    if value is None:
        return []
    return [_text(item, name) for item in (value if isinstance(value, list) else [value])]


def _text(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str | int | float):
        raise ValueError(f"`{name}` contains {value!r}, which is not a string, number or boolean")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"`{name}` contains {value}, which is not a finite number")
    text = str(value).strip()
    if not text:
        raise ValueError(f"`{name}` contains an empty string")
    return _encodable(text, name)


def _encodable(text: str, name: str) -> str:
    r"""Reject half of a surrogate pair (``\ud83d``), which JSON can contain but text cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"`{name}` contains a lone surrogate") from None
    return text
