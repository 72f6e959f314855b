"""The contract of a pipeline: a pure generator turns an item into rows or a reason for having none.

    def steps(item: Item[T], rng: Random) -> Steps[ItemResult]:
        parts = yield from ask(AskTeacher("decompose", prompt), read_parts)
        found = yield from search(SearchCollection(parts[0], 10))
        …
        return ItemResult((OutputRow({...}, source),))

It yields requests and receives their results. It does no I/O, so tests can step it. The
driver (`service.workshop.synthesis.driver`) performs the requests, counts dropped
items and writes the output.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from service.core.domain import Passage, RetrieverName
from service.engines.base import FinishReason, Message
from service.workshop.facts.splits import Split, side_of
from service.workshop.synthesis.prompts import Prompts

T = TypeVar("T")
ATTEMPTS: Final = 3  # attempts at a call until its reply is usable (METHODS.md §4.5)
RETRY_TEMPERATURE: Final = 0.7  # greedy decoding would repeat the unusable reply


class Dropped(Exception):
    """Raised for an item that gives no row. `reason` is one of a few texts, by which the report
    counts items."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnusableReply(Exception):
    """Raised for a reply that cannot be used, with one of a few reasons. The teacher is called
    again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadLine(Exception):
    """Raised for an input line that is not an item of the pipeline, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


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
class AskTeacher:
    """A request for a reply of the teacher. `stage` names the request in the report.

    The first attempt is greedy unless `temperature` is set. Further attempts have a temperature of
    at least `RETRY_TEMPERATURE`.
    """

    stage: str
    messages: tuple[Message, ...]
    max_tokens: int = 512
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    json_schema: Mapping[str, Any] | None = None
    attempts: int = ATTEMPTS


@dataclass(frozen=True, slots=True)
class SearchCollection:
    """A request for a search of the run's collection. Training rows never see held-out passages."""

    query: str
    top_k: int
    retriever: RetrieverName = "hybrid"


@dataclass(frozen=True, slots=True)
class BadRound:
    """Reports the last reply to the driver as unusable. It is not a request."""

    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The teacher's reply, without its reasoning."""

    text: str
    finish: FinishReason = "stop"


Request = AskTeacher | SearchCollection | BadRound
Steps = Generator[Request, Any, T]


def ask(request: AskTeacher, read: Callable[[str], T]) -> Steps[T]:
    """Call the teacher until `read` accepts a complete reply. `read` raises UnusableReply to reject
    one.

    Raises Dropped if all attempts are rejected.
    """
    reason = ""
    for attempt in range(request.attempts):
        hotter = max(request.temperature, RETRY_TEMPERATURE)
        reply: Reply = yield replace(request, temperature=hotter) if attempt else request
        try:
            return read(_whole(reply))
        except UnusableReply as error:
            reason = error.reason
            yield BadRound(request.stage, reason)
    raise Dropped(f"{request.stage}: {reason}")


def _whole(reply: Reply) -> str:
    if reply.finish == "length":
        raise UnusableReply("truncated")
    if not reply.text.strip():
        raise UnusableReply("empty")
    return reply.text


def search(request: SearchCollection) -> Steps[tuple[Passage, ...]]:
    """Request a search, and return the passages found, best first."""
    found: tuple[Passage, ...] = yield request
    return found


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


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows to write, and the number of omitted rows by reason."""

    rows: list[OutputRow]
    lost: Mapping[str, int] = field(default_factory=Counter)


def keep_all(rows: Sequence[OutputRow], rng: random.Random) -> Selection:
    return Selection(list(rows))


@dataclass(frozen=True, slots=True)
class Pipeline(Generic[T]):
    """The data synthesis of one paper. `version` increases when the rows change for the same
    replies.

    `read` turns lines of the input into items, `steps` turns an item into its result, and `select`
    chooses among all rows at the end, in the order of the input (for sampling and balance).
    `searches` means that the pipeline needs a collection. Rows of a named kind in `kinds` are
    written to a file of their own, `OUTPUT.<kind>.jsonl`. `templates` is the template set (a name
    or a folder) whose prompts the rows contain, if they contain prompts.
    """

    name: str
    version: int
    prompts: Prompts
    read: Reader[T]
    steps: Callable[[Item[T], random.Random], Steps[ItemResult]]
    select: Callable[[Sequence[OutputRow], random.Random], Selection] = keep_all
    searches: bool = False
    kinds: tuple[str, ...] = ("",)
    templates: str = ""
