"""Steps a pipeline by hand: a test says what the teacher replies and what a search finds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import anyio.lowlevel

from service.core.domain import Passage
from service.core.errors import EngineLimited
from service.engines.base import FinishReason
from service.workshop.synthesis.contract import (
    AskTeacher,
    Item,
    OutputRow,
    Pipeline,
    Session,
    Spent,
    Teacher,
)

# "train" and "test" by the SHA-256 of the normalised name
KNOWN, HELD_OUT = "Canberra", "Paris"
T = TypeVar("T")


class Reply(NamedTuple):
    text: str
    finish: FinishReason = "stop"


class Outcome(NamedTuple):
    """The rows of an item, and its parts that were left out."""

    rows: Sequence[OutputRow]
    lost: Counter[str]


class Read(NamedTuple):
    """The items of lines, and the invalid ones."""

    items: list[Item[Any]]
    bad: list[tuple[int, str]]


def read_by(
    reader: Callable[..., list[Item[Any]]], lines: Iterable[tuple[int, Mapping[str, Any]]]
) -> Read:
    bad: list[tuple[int, str]] = []
    return Read(reader(lines, random.Random(0), bad), bad)


Answer = str | Reply


class Said:
    """A teacher that says `replies` in order, or makes them from each call."""

    def __init__(self, replies: Sequence[Answer] | Callable[[AskTeacher], Answer]) -> None:
        given = iter(replies) if not callable(replies) else None
        self._reply = replies if callable(replies) else lambda call: next(cast(Any, given))
        self.asked: list[AskTeacher] = []

    async def say(self, call: AskTeacher, seed: int, spent: Spent) -> Reply:
        self.asked.append(call)
        said = self._reply(call)
        return said if isinstance(said, Reply) else Reply(said)


def finished(work: Coroutine[Any, Any, T]) -> T:
    """What work returns that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise AssertionError("it waits")


def session_of(
    teacher: Said,
    found: Mapping[str, Sequence[Passage]] | None = None,
    key: str = "0",
    templates: str = "",
) -> Session:
    """`found`: passages by query; a query that it lacks finds nothing."""

    async def find(query: str, top_k: int, retriever: str) -> tuple[Passage, ...]:
        return tuple((found or {}).get(query, ()))[:top_k]

    return Session(cast(Teacher, teacher), find, key, templates=templates)


def run_by_hand(
    pipeline: Pipeline[Any],
    item: Item[Any],
    replies: Sequence[Answer] | Callable[[AskTeacher], Answer],
    found: Mapping[str, Sequence[Passage]] | None = None,
    seed: int = 0,
) -> tuple[Outcome, list[AskTeacher], Counter[str]]:
    """The outcome, the calls, and the bad rounds."""
    teacher = Said(replies)
    session = session_of(teacher, found, str(seed), pipeline.templates)
    rows: Sequence[OutputRow] = finished(pipeline.work(item, session))  # type: ignore[arg-type]
    return Outcome(rows, +session.lost), teacher.asked, session.spent.bad


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await anyio.lowlevel.checkpoint()


def limited(seconds: int) -> EngineLimited:
    """As the client of an OpenAI-compatible server raises it for a 429 with Retry-After."""
    failure = EngineLimited("the server is over its limit")
    failure.retry_after = seconds
    return failure
