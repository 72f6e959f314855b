"""Read questions with gold answers from JSONL, in the formats of public data sets.

Each line is an object with `question`, and `answer` or `answers` (text, number, yes/no as a
boolean, or a list of alternatives) with `answer_aliases`. A compound gold answer is `parts` (each a
text or a list of aliases), or an `answer` whose parts are joined by ` && `. With `choices`, an
answer that is one of their letters stands for the text. Optional fields are `id`, `route` and
`supporting_passage_ids`. Other fields are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from service.answer.request import LONGEST_QUESTION
from service.core.domain import RouteName

JOINT: Final = " && "
_MOST_PROBLEMS: Final = 20
_ROUTES: Final[Mapping[str, RouteName]] = {name: name for name in get_args(RouteName)}


@dataclass(frozen=True, slots=True)
class GoldQuestion:
    """Each of the `answers` is correct as a whole; without any, abstaining is. `parts` are the
    aliases of each part of a compound. `supporting` are the ids of the gold passages;
    `supporting_titles`, case-folded, those of gold articles, where the dataset names these."""

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
        """Return every text that is (part of) a correct answer."""
        return tuple(alias for part in self.parts for alias in part) or self.answers


class DatasetError(ValueError):
    """A file that cannot be evaluated. `problems` has one line each, with file, line number and
    reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def load_dataset(path: Path) -> list[GoldQuestion]:
    """Read all questions. Raises DatasetError with every invalid line (the first 20)."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DatasetError([f"{path} cannot be read: {error.strerror}"]) from None
    questions: dict[str, GoldQuestion] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            question = read_question(_object(line), str(number))
            if question.id in questions:
                raise ValueError(f"the id {question.id!r} occurs on an earlier line")
            questions[question.id] = question
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    if not questions and not problems:
        problems.append(f"{path} contains no questions")
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        extra = [f"{path}: {more} more invalid lines"] if more > 0 else []
        raise DatasetError(problems[:_MOST_PROBLEMS] + extra)
    return list(questions.values())


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("is nested too deep") from None
    if not isinstance(row, dict):
        raise ValueError("is not a JSON object")
    return row


def read_question(row: Mapping[str, Any], default_id: str) -> GoldQuestion:
    """Read one object. Raises ValueError, which names the invalid field and the reason."""
    answers = _answers(row)
    parts = _parts(row, answers)
    if parts:
        answers = (JOINT.join(part[0] for part in parts), *answers)
    if not answers:
        raise ValueError("has no answer: add `answer`, `answers` or `parts`")
    return GoldQuestion(
        id=_id(row, default_id),
        question=_question(row),
        answers=tuple(dict.fromkeys(answers)),
        parts=parts,
        route=_route(row),
        supporting=frozenset(_texts(row, "supporting_passage_ids")),
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
    if not isinstance(route, str) or route not in _ROUTES:
        raise ValueError(f"`route` is {route!r}, not one of {', '.join(_ROUTES)}")
    return _ROUTES[route]


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
    """A field as texts: one value or a list of values; yes and no for booleans."""
    value = row.get(name)
    if value is None:
        return []
    return [_text(item, name) for item in (value if isinstance(value, list) else [value])]


def _text(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str | int | float):
        raise ValueError(f"`{name}` contains {value!r}, which is not a string, number or boolean")
    text = str(value).strip()
    if not text:
        raise ValueError(f"`{name}` contains an empty string")
    return _encodable(text, name)


def _encodable(text: str, name: str) -> str:
    r"""JSON can write half of a surrogate pair (``\ud83d``), which no text can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"`{name}` contains a lone surrogate") from None
    return text
