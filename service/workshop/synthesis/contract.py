"""The contract of a pipeline: a function turns an item into rows or a reason for having none.

    async def work(item: Item[T], session: Session) -> Sequence[OutputRow]:
        parts = await session.ask(AskTeacher(prompt, stage="decompose"), read_parts)
        found = await session.search(parts[0], 10)
        …
        return [OutputRow({...}, source)]

The session calls the teacher, searches, and counts the parts that are left out (`session.lost`).
The run (`command.py`) counts dropped items and writes the output.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from service.core.domain import Passage
from service.core.errors import InvalidRequest
from service.engines.base import Message
from service.evaluation.datasets import DatasetError, elements_of
from service.workshop.rows import RowOrigin
from service.workshop.splits import Split

if TYPE_CHECKING:
    from service.workshop.synthesis.teacher import Prompts, Session

T = TypeVar("T")


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
class Item(Generic[T]):
    """One unit of input. `id` is unique in a run, and the type of `content` depends on the
    pipeline. `question` is what is asked, if that is a part of the input."""

    id: str
    content: T
    source: RowOrigin
    question: str = ""

    @property
    def side(self) -> Split | None:
        return self.source.side_for(self.question)


@dataclass(frozen=True)
class OutputRow:
    """One line of the output, without its provenance.

    `kind` is one of the `kinds` of the pipeline. `source` names only the sources of this row.
    """

    fields: Mapping[str, Any]
    source: RowOrigin
    kind: str = ""

    @property
    def side(self) -> Split | None:
        return self.source.side_for(self.fields["question"])


def chat_row(task: str, question: str, turns: Iterable[Message], source: RowOrigin) -> OutputRow:
    """Return a row with a chat, of which the model learns its own turns."""
    messages = [
        {"role": turn.role, "content": turn.content, "learn": turn.role == "assistant"}
        for turn in turns
    ]
    return OutputRow({"task": task, "question": question, "messages": messages}, source)


Lines = Iterable[tuple[int, Mapping[str, Any]]]
BadLines = list[tuple[int, str]]  # numbers and reasons
Reader = Callable[[Lines, random.Random, BadLines], list[Item[T]]]


def read_each(lines: Lines, read: Callable[[Mapping[str, Any], str], T], bad: BadLines) -> list[T]:
    """Return what `read` makes of each line and of a default id for it. The lines for which it
    raises BadLine are added to `bad`."""
    found: list[T] = []
    for number, line in lines:
        try:
            found.append(read(line, f"line-{number}"))
        except BadLine as error:
            bad.append((number, error.reason))
    return found


def items_of(
    lines: Lines, read: Callable[[Mapping[str, Any], str], Item[T]], bad: BadLines
) -> list[Item[T]]:
    """Return the items of an input with one item per line; their ids must differ."""
    known: set[str] = set()

    def unique(line: Mapping[str, Any], default_id: str) -> Item[T]:
        item = read(line, default_id)
        if item.id in known:
            raise BadLine("id of an earlier line")
        known.add(item.id)
        return item

    return read_each(lines, unique, bad)


# The rows to write, and the number of omitted rows by reason.
Selection = tuple[list[OutputRow], Mapping[str, int]]


def keep_all(rows: Sequence[OutputRow], rng: random.Random) -> Selection:
    return list(rows), {}


@dataclass(frozen=True, slots=True)
class Pipeline(Generic[T]):
    """The data synthesis of one paper. `version` increases when the rows change for the same
    replies.

    `read` turns lines of the input into items, and adds invalid ones to its last argument; `work`
    turns an item into rows, and `select` chooses among all rows at the end, in the order of the
    input (for sampling and balance).
    `searches` means that the pipeline needs a collection. Rows of a named kind in `kinds` are
    written to a file of their own, `OUTPUT.<kind>.jsonl`. `templates` is the template set (a name
    or a folder) whose prompts the rows contain, if they contain prompts; it has those of `tasks`.
    """

    name: str
    version: int
    prompts: Prompts
    read: Reader[T]
    work: Callable[[Item[T], Session], Awaitable[Sequence[OutputRow]]]
    select: Callable[[Sequence[OutputRow], random.Random], Selection] = keep_all
    searches: bool = False
    kinds: tuple[str, ...] = ("",)
    templates: str = ""
    tasks: tuple[str, ...] = ()


# ---- input files


def read_lines(path: Path) -> tuple[list[tuple[int, Mapping[str, Any]]], BadLines]:
    """Return the JSON objects of a file, as `revelator evaluate` reads it, with the numbers of
    their lines or elements, and the invalid ones with their reasons.

    Raises InvalidRequest if the file cannot be read or is empty.
    """
    try:
        elements = list(elements_of(path))
    except DatasetError as error:
        raise InvalidRequest(error.problems[0]) from None
    if not elements:
        raise InvalidRequest(f"{path}: has no lines; give items as JSON Lines")
    good = [
        (element.number, element.found)
        for element in elements
        if not isinstance(element.found, str)
    ]
    bad = [(e.number, e.found.partition(":")[0]) for e in elements if isinstance(e.found, str)]
    return good, bad


def text_of(row: Mapping[str, Any], name: str) -> str:
    """Return a field that must be a string with visible characters. Raises BadLine if it is not."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadLine(f"no `{name}`")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadLine(f"half a surrogate pair in `{name}`") from None
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
