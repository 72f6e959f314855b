"""Steps a pipeline by hand: a test says what the teacher replies and what a search finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from service.core.domain import Passage
from service.engines.base import FinishReason
from service.workshop.synthesis.contract import Item, ItemResult, Pipeline
from service.workshop.synthesis.teacher import AskTeacher, Session, Spent, Teacher

# "train" and "test" by the SHA-256 of the normalised name
KNOWN, HELD_OUT = "Canberra", "Paris"
T = TypeVar("T")


class Reply(NamedTuple):
    text: str
    finish: FinishReason = "stop"


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
    teacher: Said, found: Mapping[str, Sequence[Passage]] | None = None, key: str = "0"
) -> Session:
    """`found`: passages by query; a query that it lacks finds nothing."""

    async def find(query: str, top_k: int, retriever: str) -> tuple[Passage, ...]:
        return tuple((found or {}).get(query, ()))[:top_k]

    return Session(cast(Teacher, teacher), find, key)


def run_by_hand(
    pipeline: Pipeline[Any],
    item: Item[Any],
    replies: Sequence[Answer] | Callable[[AskTeacher], Answer],
    found: Mapping[str, Sequence[Passage]] | None = None,
    seed: int = 0,
) -> tuple[ItemResult, list[AskTeacher], Counter[str]]:
    """The outcome, the calls, and the bad rounds."""
    teacher = Said(replies)
    session = session_of(teacher, found, str(seed))
    return finished(pipeline.work(item, session)), teacher.asked, session.spent.bad  # type: ignore[arg-type]
