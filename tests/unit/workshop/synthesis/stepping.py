"""Steps a pipeline by hand: a test says what the teacher replies and what a search finds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from service.core.domain import Passage
from service.workshop.synthesis.contract import (
    AskTeacher,
    BadRound,
    Item,
    ItemResult,
    Pipeline,
    Reply,
    SearchCollection,
)

# "train" and "test" by the SHA-256 of the normalised name
KNOWN, HELD_OUT = "Canberra", "Paris"

Answer = str | Reply


def run_by_hand(
    pipeline: Pipeline[Any],
    item: Item[Any],
    replies: Sequence[Answer] | Callable[[AskTeacher], Answer],
    found: Mapping[str, Sequence[Passage]] | None = None,
    seed: int = 0,
) -> tuple[ItemResult, list[AskTeacher], Counter[str]]:
    """The outcome, the calls, and the bad rounds; `replies` in order, or made from each call.

    `found`: passages by query; a query that it lacks finds nothing.
    """
    steps = pipeline.steps(item, random.Random(seed))
    given = iter(replies) if not callable(replies) else None
    asked: list[AskTeacher] = []
    bad: Counter[str] = Counter()
    brought: Any = None
    while True:
        try:
            request = steps.send(brought)
        except StopIteration as end:
            return end.value, asked, bad
        brought = None
        if isinstance(request, BadRound):
            bad[f"{request.stage}: {request.reason}"] += 1
        elif isinstance(request, SearchCollection):
            brought = tuple((found or {}).get(request.query, ()))[: request.top_k]
        else:
            asked.append(request)
            said = next(given) if given is not None else replies(request)  # type: ignore[operator]
            brought = said if isinstance(said, Reply) else Reply(said)
