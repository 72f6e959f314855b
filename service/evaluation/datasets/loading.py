"""Read the questions of a file in any of the published formats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service.evaluation.datasets.files import NOT_UTF8, Element, elements_of
from service.evaluation.datasets.formats import FORMATS, Aliases, Format, detect
from service.evaluation.datasets.questions import GoldQuestion, read_question
from service.retrieval.ingest.formats.base import DAMAGED, NotCompressed, open_input

ALIASES: Final = "id_aliases.json"  # 2Wiki's aliases of answers, in the folder of its questions
_MOST_PROBLEMS: Final = 20
_FORM: Final = 'Write a JSON object on each line: {"question": "…", "answer": "…"}'


class DatasetError(ValueError):
    """Raised for a file that cannot be evaluated.

    `problems` has one line per problem, with file, line number and reason.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """The questions of a file and the format in which they were read."""

    questions: list[GoldQuestion]
    format: Format


def load_dataset(path: Path) -> list[GoldQuestion]:
    """Return all questions of a file. Raises the errors of `load_file`."""
    return load_file(path).questions


def load_file(path: Path, format: str | None = None) -> LoadedFile:
    """Return all questions of a file.

    Without `format`, the format is detected from the content. Raises DatasetError with the first 20
    invalid lines.
    """
    elements = list(elements_of(_content(path)))
    first = next((e.found for e in elements if not isinstance(e.found, str)), {})
    known = FORMATS[format] if format else detect(first)
    beside = {"2wiki": _aliases, "beir": _qrels}.get(known.name)
    reading = _Reading(path, known, beside(path.parent) if beside else {})
    for element in elements:
        reading.add(element)
    return LoadedFile(reading.finish(), known)


def _content(path: Path) -> bytes:
    """Return the bytes of a file, decompressed if it is compressed with gzip or zstd."""
    try:
        with open_input(path.resolve(), path.name) as opened:
            return opened.stream.read()
    except NotCompressed:
        problem = f"{path}: its name says compressed, but it is not gzip or zstd"
    except DAMAGED as error:
        problem = f"{path}: the compressed data is truncated or damaged ({error})"
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
    raise DatasetError([problem])


def _aliases(folder: Path) -> Aliases:
    """Return the aliases and demonyms by answer id that 2Wiki's script accepts, or none if its file
    is missing."""
    path = folder / ALIASES
    if not path.is_file():
        return {}
    known: dict[str, Sequence[str]] = {}
    for number, line in enumerate(_content(path).splitlines(), 1):
        try:
            row = json.loads(line)
            known[row["Q_id"]] = [*row["aliases"], *row["demonyms"]]
        except (ValueError, KeyError, TypeError):
            raise DatasetError(
                [f"{path}:{number}: is not an object with Q_id, aliases and demonyms"]
            ) from None
    return known


def _qrels(folder: Path) -> Aliases:
    """Return the ids of the relevant passages by query id, from all files of BEIR's `qrels/`."""
    known: dict[str, list[str]] = {}
    for path in sorted((folder / "qrels").glob("*.tsv")):
        for element in elements_of(_content(path)):
            try:
                if isinstance(element.found, str):
                    raise ValueError
                if int(element.found["score"]) > 0:
                    known.setdefault(element.found["query-id"], []).append(
                        element.found["corpus-id"]
                    )
            except (ValueError, KeyError):
                problem = f"{path}:{element.line}: is not a row with query-id, corpus-id and score"
                raise DatasetError([problem]) from None
    return known


class _Reading:
    """The questions read so far, and the problems found."""

    def __init__(self, path: Path, format: Format, aliases: Aliases) -> None:
        self._path = path
        self._format = format
        self._aliases = aliases
        self._questions: dict[str, GoldQuestion] = {}
        self._lines: dict[str, int] = {}
        self._problems: list[str] = []
        self._readable = False  # whether any element was, or could be, JSON or a row of a table

    def add(self, element: Element) -> None:
        place = ""
        if isinstance(element.found, str):
            self._problem(element, place, element.found)
            # An element that is not UTF-8 may still have the right format.
            self._readable = self._readable or element.found.startswith(NOT_UTF8)
            return
        self._readable = True
        try:
            for count, (place, row) in enumerate(self._format.rows(element.found, self._aliases)):
                own = f"{element.number}.{count + 1}" if place else str(element.number)
                try:
                    self._keep(element, self._read(row, own))
                except ValueError as error:
                    self._problem(element, place, str(error))
        except ValueError as error:
            self._problem(element, "", str(error))

    def _read(self, row: object, default_id: str) -> GoldQuestion:
        if not isinstance(row, dict):
            raise ValueError("is not a JSON object")
        with_route = {"route": self._format.route, **row}
        return read_question(with_route, default_id, may_abstain=True)

    def _keep(self, element: Element, question: GoldQuestion) -> None:
        if question.id in self._questions:
            line = self._lines[question.id]
            where = f"on line {line}" if line != element.line else "on the same line"
            raise ValueError(f"the id {question.id!r} occurs earlier, {where}")
        self._questions[question.id] = question
        self._lines[question.id] = element.line

    def _problem(self, element: Element, place: str, what: str) -> None:
        counted = f"element {element.number}: " if element.number != element.line else ""
        placed = f"{place}: " if place else ""
        self._problems.append(f"{self._path}:{element.line}: {counted}{placed}{what}")

    def finish(self) -> list[GoldQuestion]:
        if not self._questions and not self._problems:
            self._problems.append(f"{self._path} contains no questions")
        if self._problems:
            more = len(self._problems) - _MOST_PROBLEMS
            extra = [f"{self._path}: {more} more invalid lines"] if more > 0 else []
            form = [] if self._readable else [_FORM]
            raise DatasetError([*self._problems[:_MOST_PROBLEMS], *extra, *form])
        return list(self._questions.values())
