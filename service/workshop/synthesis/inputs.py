"""Read input files: items as JSON Lines, invalid lines with their reasons, and excluded
questions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from service.core.domain import Passage
from service.core.errors import InvalidRequest
from service.workshop.facts.splits import canonical_form
from service.workshop.synthesis.contract import BadLine


def read_lines(path: Path) -> tuple[list[tuple[int, Mapping[str, Any]]], list[tuple[int, str]]]:
    """Return the JSON objects of a file with their line numbers, and the invalid lines with their
    reasons.

    Raises InvalidRequest if the file cannot be read or is empty.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read: {error.strerror}") from None
    good: list[tuple[int, Mapping[str, Any]]] = []
    bad: list[tuple[int, str]] = []
    for number, line in _numbered(lines):
        try:
            good.append((number, _object(line)))
        except BadLine as error:
            bad.append((number, error.reason))
    if not good and not bad:
        raise InvalidRequest(f"{path}: has no lines; give items as JSON Lines")
    return good, bad


def _numbered(lines: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(line.decode("utf-8-sig"))
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is not valid text
    except UnicodeError:
        raise BadLine("not UTF-8") from None
    except (ValueError, RecursionError):
        raise BadLine("not JSON") from None
    if not isinstance(value, dict):
        raise BadLine("no JSON object")
    return value


def text_of(row: Mapping[str, Any], name: str) -> str:
    """Return a field that must be a string with visible characters. Raises BadLine if it is not."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadLine(f"no `{name}`")
    return value.strip()


def list_of(row: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that must be a non-empty list. Raises BadLine if it is not."""
    value = row.get(name)
    if not isinstance(value, list) or not value:
        raise BadLine(f"no list `{name}`")
    return value


def passage_of(row: object) -> Passage:
    """Return a passage from an object with `id`, `title` and `text`. Raises BadLine if it is not
    one."""
    if not isinstance(row, dict):
        raise BadLine("a passage is no object")
    return Passage(text_of(row, "id"), text_of(row, "title"), text_of(row, "text"))


EXCLUDED: Final = "in an excluded file"
Questions = frozenset[str]  # normalised


def read_questions_of(paths: Iterable[Path]) -> Questions:
    """Return the normalised `question` of every line.

    Raises InvalidRequest for a line without a question, because it could not be excluded.
    """
    questions: set[str] = set()
    for path in paths:
        lines, bad = read_lines(path)
        for number, reason in bad[:1]:
            raise InvalidRequest(f"{path}:{number}: {reason}")
        for number, line in lines:
            try:
                questions.add(canonical_form(text_of(line, "question")))
            except BadLine as error:
                raise InvalidRequest(f"{path}:{number}: {error.reason}") from None
    return frozenset(questions)


def is_excluded(question: object, excluded: Questions) -> bool:
    return isinstance(question, str) and canonical_form(question) in excluded
