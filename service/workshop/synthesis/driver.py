"""Run a pipeline over its items: perform its requests and record the results."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from service.core.concurrency import closing, merge
from service.core.domain import Passage
from service.core.errors import ConfigurationError, EngineFailure
from service.retrieval.base import Retriever, SearchRequest, anyone
from service.workshop.facts.splits import Split, is_held_out
from service.workshop.synthesis.contract import (
    AskTeacher,
    BadRound,
    Dropped,
    Item,
    ItemResult,
    Pipeline,
    Request,
    SearchCollection,
    Steps,
)
from service.workshop.synthesis.journal import Journal, JournalEntry
from service.workshop.synthesis.teacher import Spent, Teacher, TeacherOut

Finder = Callable[[SearchCollection], Awaitable[tuple[Passage, ...]]]
OUTAGE: Final = 5  # consecutive items with an unavailable teacher, after which the run ends
WRONG_SIDE: Final[dict[Split, str]] = {"train": "held out", "test": "not held out"}


@dataclass(frozen=True, slots=True)
class SynthesisRun:
    """The options of a run. `side` is the side of the split that its rows belong to, and `find`
    searches the collection."""

    pipeline: Pipeline[Any]
    teacher: Teacher
    find: Finder
    side: Split = "train"
    seed: int = 0
    concurrency: int = 8


def key_of(item: Item[Any]) -> str:
    """Return the key by which a journal recognises an item and its content."""
    return hashlib.sha256(repr((item.id, item.content)).encode()).hexdigest()[:16]


async def work_off(
    items: list[Item[Any]], run: SynthesisRun, journal: Journal
) -> AsyncIterator[tuple[Item[Any], JournalEntry]]:
    """Process the items that the journal does not contain, and yield each result after it was
    written to the journal.

    Raises EngineFailure if the teacher is unavailable for several consecutive items. The run can
    then be resumed from the journal.
    """
    todo = iter([item for item in items if not _is_done(item, journal)])
    workers = [_work(todo, run, journal) for _ in range(max(run.concurrency, 1))]
    missed = 0
    async with closing(merge(workers)) as results:
        async for _, (item, record, out) in results:
            yield item, record
            missed = missed + 1 if out else 0
            if out and missed >= OUTAGE:
                raise _outage(out)


def _is_done(item: Item[Any], journal: Journal) -> bool:
    record = journal.done.get(key_of(item))
    return record is not None and not record.again


def _outage(out: TeacherOut) -> EngineFailure:
    return EngineFailure(
        f"the teacher is unavailable: {out.failure.detail}; completed items are kept, run the same "
        "command again to continue"
    )


async def _work(
    todo: Iterator[Item[Any]], run: SynthesisRun, journal: Journal
) -> AsyncIterator[tuple[Item[Any], JournalEntry, TeacherOut | None]]:
    for item in todo:
        spent = Spent()
        try:
            record, out = kept(item, await _perform(item, run, spent), run.side, spent), None
        except Dropped as drop:
            record, out = JournalEntry(key_of(item), dropped=drop.reason, spent=spent), None
        except TeacherOut as error:
            record = JournalEntry(
                key_of(item), dropped="the teacher was unavailable", again=True, spent=spent
            )
            out = error
        journal.append(record)
        yield item, record, out


def kept(item: Item[Any], outcome: ItemResult, side: Split, spent: Spent) -> JournalEntry:
    """Return the result as a journal entry, without rows of the other side of the split."""
    rows = tuple(row for row in outcome.rows if row.source.side == side)
    lost = Counter(outcome.lost)
    if len(rows) < len(outcome.rows):
        lost[WRONG_SIDE[side]] += len(outcome.rows) - len(rows)
    dropped = None if rows else (lost.most_common(1)[0][0] if lost else "no rows")
    return JournalEntry(key_of(item), rows, dropped, lost if rows else {}, spent=spent)


async def _perform(item: Item[Any], run: SynthesisRun, spent: Spent) -> ItemResult:
    """Step the pipeline to its end."""
    rng = random.Random(f"{run.seed}:{item.id}")
    steps: Steps[ItemResult] = run.pipeline.steps(item, rng)
    brought: Any = None
    asked = 0
    try:
        while True:
            request = steps.send(brought)
            asked += isinstance(request, AskTeacher)
            seed = random.Random(f"{run.seed}:{item.id}:{asked}").getrandbits(31)
            brought = await _bring(request, run, seed, spent)
    except StopIteration as end:
        outcome: ItemResult = end.value
        return outcome
    finally:
        steps.close()


async def _bring(request: Request, run: SynthesisRun, seed: int, spent: Spent) -> Any:
    match request:
        case AskTeacher():
            return await run.teacher.say(request, seed, spent)
        case SearchCollection():
            return await run.find(request)
        case BadRound():
            spent.bad[f"{request.stage}: {request.reason}"] += 1
            return None


SPARE: Final = 4  # factor of additional hits where held-out passages are removed


async def finder_of(retriever: Retriever, collection: str | None, side: Split) -> Finder:
    """Return a function that searches a collection, without held-out passages if the rows are for
    training.

    Raises NotFound for an unknown collection.
    """
    if collection is None:
        return _nowhere
    name = await retriever.check_request(collection, {}, anyone)
    training = side == "train"

    async def find(search: SearchCollection) -> tuple[Passage, ...]:
        top_k = search.top_k * SPARE if training else search.top_k
        request = SearchRequest(search.query, top_k, name, search.retriever)
        found = (scored.passage for scored in (await retriever.search(request)).passages)
        usable = [p for p in found if not (training and is_held_out(p.title))]
        return tuple(usable[: search.top_k])

    return find


async def _nowhere(search: SearchCollection) -> tuple[Passage, ...]:
    raise ConfigurationError("this pipeline searches: name a collection with --collection")
