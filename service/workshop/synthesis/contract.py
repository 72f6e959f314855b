"""The contract of a pipeline: a function turns an item into rows or a reason for having none.

    async def work(item: Item[T], session: Session) -> ItemResult:
        parts = await session.ask(AskTeacher("decompose", prompt), read_parts)
        found = await session.search(parts[0], 10)
        …
        return ItemResult((OutputRow({...}, source),))

The session calls the teacher and searches. The run (`command.py`) counts dropped items and writes
the output.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from service.core.domain import Passage
from service.core.errors import InvalidRequest
from service.workshop.facts.splits import Split, canonical_form, side_of

if TYPE_CHECKING:
    from service.workshop.synthesis.teacher import Prompts, Session

T = TypeVar("T")
EXCLUDED: Final = "in an excluded file"
Questions = frozenset[str]  # normalised


class Dropped(Exception):
    """Raised for an item that gives no row. `reason` is one of a few texts, by which the report
    counts items."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnusableReply(Dropped):
    """Raised for a reply that cannot be used. The teacher is called again."""


class BadLine(Dropped):
    """Raised for an input line that is not an item of the pipeline."""


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """The sources of an item or a row, which decide its side of the split
    (`service.workshop.facts.splits`).

    `ids` and `titles` belong to all its passages, `answer_titles` to the passages that contain the
    answer. `question` is set only for questions that people wrote, not for synthesised ones.
    """

    ids: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    answer_titles: tuple[str, ...] = ()
    question: str | None = None

    @property
    def side(self) -> Split | None:
        return side_of(self.titles, self.answer_titles, self.question)


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """One unit of input. `id` is unique in a run, and the type of `content` depends on the
    pipeline."""

    id: str
    content: T
    source: RowOrigin


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One line of the output, without its provenance.

    `kind` is one of the `kinds` of the pipeline. `source` names only the sources of this row.
    """

    fields: Mapping[str, Any]
    source: RowOrigin
    kind: str = ""


@dataclass(frozen=True, slots=True)
class ItemResult:
    """The rows of an item.

    `lost` counts the omitted parts by reason; an item without rows is dropped for the most frequent
    reason.
    """

    rows: tuple[OutputRow, ...]
    lost: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InputItems(Generic[T]):
    """The items of an input, and its invalid lines with their numbers and reasons."""

    items: list[Item[T]]
    bad: list[tuple[int, str]]


Lines = Iterable[tuple[int, Mapping[str, Any]]]
Reader = Callable[[Lines, random.Random], InputItems[T]]


def one_each(read: Callable[[Mapping[str, Any], str], Item[T]]) -> Reader[T]:
    """Return a reader for an input with one item per line.

    `read` gets the line, and a default id for lines without one.
    """

    def read_all(lines: Lines, rng: random.Random) -> InputItems[T]:
        items: dict[str, Item[T]] = {}
        bad: list[tuple[int, str]] = []
        for number, line in lines:
            try:
                item = read(line, f"line-{number}")
            except BadLine as error:
                bad.append((number, error.reason))
                continue
            if item.id in items:
                bad.append((number, "id of an earlier line"))
            else:
                items[item.id] = item
        return InputItems(list(items.values()), bad)

    return read_all


# The rows to write, and the number of omitted rows by reason.
Selection = tuple[list[OutputRow], Mapping[str, int]]


def keep_all(rows: Sequence[OutputRow], rng: random.Random) -> Selection:
    return list(rows), {}


@dataclass(frozen=True, slots=True)
class Pipeline(Generic[T]):
    """The data synthesis of one paper. `version` increases when the rows change for the same
    replies.

    `read` turns lines of the input into items, `work` turns an item into its result, and `select`
    chooses among all rows at the end, in the order of the input (for sampling and balance).
    `searches` means that the pipeline needs a collection. Rows of a named kind in `kinds` are
    written to a file of their own, `OUTPUT.<kind>.jsonl`. `templates` is the template set (a name
    or a folder) whose prompts the rows contain, if they contain prompts.
    """

    name: str
    version: int
    prompts: Prompts
    read: Reader[T]
    work: Callable[[Item[T], Session], Awaitable[ItemResult]]
    select: Callable[[Sequence[OutputRow], random.Random], Selection] = keep_all
    searches: bool = False
    kinds: tuple[str, ...] = ("",)
    templates: str = ""


# ---- input files


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
