"""What a pipeline is: a pure generator from one item to rows, or a named reason for having none.

    def steps(item: Item[T], rng: Random) -> Steps[ItemResult]:
        parts = yield from ask(Ask("decompose", prompt), read_parts)
        found = yield from search(Search(parts[0], 10))
        …
        return ItemResult((Row({...}, source),))

It yields requests and is sent what they bring; it does no I/O, so a test steps it by hand. The
driver (`service.workshop.synthesis.driver`) performs the requests, counts what is dropped and
writes.
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
ATTEMPTS: Final = 3  # of a call whose reply is no good (METHODS.md §4.5)
RETRY_TEMPERATURE: Final = 0.7  # greedy again would say the same again


class Dropped(Exception):
    """The item gives no row. `reason` is one of few: the report counts by it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnusableReply(Exception):
    """A reply that cannot be used, by a reason that is one of few; it is asked for again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadLine(Exception):
    """A line of the input that is no item of this pipeline, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """What an item or a row is made of; it decides the side of the split
    (`service.workshop.facts.splits`).

    `ids` and `titles` of all its passages, `answer_titles` of those that hold the answer, and
    `question` where people wrote it (a synthesised one is left out).
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
    """One unit of input. `id` is unique in a run; `content` is the pipeline's own."""

    id: str
    content: T
    source: RowOrigin


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One line of the output, without its provenance; `source` as far as it is this row's.

    `kind` is one of the pipeline's `kinds`.
    """

    fields: Mapping[str, Any]
    source: RowOrigin
    kind: str = ""


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What an item gave. `lost`: what was left out of it, by reason; without rows it is dropped
    for the reason that came most often."""

    rows: tuple[OutputRow, ...]
    lost: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AskTeacher:
    """A call of the teacher. `stage` names it in the report.

    Greedy at first, unless `temperature` says otherwise; again at `RETRY_TEMPERATURE` at least.
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
    """A search of the run's collection. Where rows are for training, what is held out is not
    among the passages found."""

    query: str
    top_k: int
    retriever: RetrieverName = "hybrid"


@dataclass(frozen=True, slots=True)
class BadRound:
    """Not a request: tells the driver that the last reply was no good, to be counted."""

    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What a teacher said, without its reasoning."""

    text: str
    finish: FinishReason = "stop"


Request = AskTeacher | SearchCollection | BadRound
Steps = Generator[Request, Any, T]


def ask(request: AskTeacher, read: Callable[[str], T]) -> Steps[T]:
    """Ask until `read` takes a whole reply (it raises BadReply). Raises Dropped when none is."""
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
    """The passages found, by rank."""
    found: tuple[Passage, ...] = yield request
    return found


@dataclass(frozen=True, slots=True)
class InputItems(Generic[T]):
    """The input as items, and the lines that are none: their numbers and why."""

    items: list[Item[T]]
    bad: list[tuple[int, str]]


Lines = Iterable[tuple[int, Mapping[str, Any]]]
Reader = Callable[[Lines, random.Random], InputItems[T]]


def one_each(read: Callable[[Mapping[str, Any], str], Item[T]]) -> Reader[T]:
    """The reader of an input that has an item a line; `read` takes it and an id for want of one."""

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
    """The rows that are kept of all that were made, and how many were not, by reason."""

    rows: list[OutputRow]
    lost: Mapping[str, int] = field(default_factory=Counter)


def keep_all(rows: Sequence[OutputRow], rng: random.Random) -> Selection:
    return Selection(list(rows))


@dataclass(frozen=True, slots=True)
class Pipeline(Generic[T]):
    """A paper's synthesis. `version` goes up when its rows change for the same replies.

    `read`: lines of the input to items. `steps`: one item to its outcome. `select`: at the end,
    over all rows in the order of the input (sampling, balance). `searches`: it needs a collection.
    `kinds`: rows of a kind that has a name go to a file of their own, `OUTPUT.<kind>.jsonl`.
    `templates`: the set (a name or a folder) whose prompts the rows have, if they have any.
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
