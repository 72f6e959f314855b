"""Questions of development and test files: no row may ask one of them (METHODS.md §1.5)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from service.core.errors import InvalidRequest
from service.workshop.facts.splits import normalise
from service.workshop.synthesis.contract import BadLine
from service.workshop.synthesis.reading import read_lines, text_of

EXCLUDED: Final = "in an excluded file"
Questions = frozenset[str]  # normalised


def read_questions_of(paths: Iterable[Path]) -> Questions:
    """The `question` of every line. Raises InvalidRequest for a line that has none: what cannot
    be read could not be kept out."""
    questions: set[str] = set()
    for path in paths:
        lines, bad = read_lines(path)
        for number, reason in bad[:1]:
            raise InvalidRequest(f"{path}:{number}: {reason}")
        for number, line in lines:
            try:
                questions.add(normalise(text_of(line, "question")))
            except BadLine as error:
                raise InvalidRequest(f"{path}:{number}: {error.reason}") from None
    return frozenset(questions)


def is_excluded(question: object, excluded: Questions) -> bool:
    return isinstance(question, str) and normalise(question) in excluded
